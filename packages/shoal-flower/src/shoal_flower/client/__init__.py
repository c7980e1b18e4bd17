"""The client's side on a real machine: its ClientApp, data, state folder and privacy ledger."""
