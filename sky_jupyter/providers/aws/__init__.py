"""Amazon EC2 as a provider. boto3 is imported when AWS is first called."""

from .provider import AWS

__all__ = ["AWS"]
