"""What a stream says of its visits, checked against a dictionary."""


def replay(arrays):
    """Check age, binding and rebind against a dictionary per trial."""
    steps, trials = arrays["key_id"].shape
    for b in range(trials):
        held, last = {}, {}
        for t in range(steps):
            key, value = int(arrays["key_id"][t, b]), int(arrays["value_id"][t, b])
            assert arrays["binding"][t, b] == held.get(key, -1)
            assert arrays["age"][t, b] == (t - last[key] if key in last else -1)
            if "rebind" in arrays:
                assert arrays["rebind"][t, b] == (key in held and held[key] != value)
            held[key], last[key] = value, t
