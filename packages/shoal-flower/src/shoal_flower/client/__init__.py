"""The client on a real machine: its ClientApp, data, state folder and privacy ledger."""
