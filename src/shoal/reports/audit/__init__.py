"""The pages of audits."""
