"""Many runs from one file: what varies, running it on many processors, and tables and figures of the outcome."""
