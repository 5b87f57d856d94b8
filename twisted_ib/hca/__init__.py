"""The software host channel adapter."""
