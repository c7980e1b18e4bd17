"""The server on a real machine: its ServerApp, the known clients, and the run's directory."""
