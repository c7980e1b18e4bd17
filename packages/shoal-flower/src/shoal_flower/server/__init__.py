"""The server's side on a real machine: its ServerApp, the clients it knows, and the run's directory."""
