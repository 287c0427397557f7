"""Serialization of values between processes."""
