"""Amazon EC2 as a provider; botocore is imported when AWS is first called."""

from .provider import AWS

__all__ = ["AWS"]
