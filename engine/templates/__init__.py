"""What `engine plugins new` starts a plugin from: whole plugins, and their tests, run by ours."""
