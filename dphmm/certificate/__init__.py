"""Certificates of releases: the public data from which anyone can verify the guarantee.

The verifier, ``scripts/dphmm-verify``, does not need this package.
"""

from dphmm.certificate.writer import CertificateWriter

__all__ = ["CertificateWriter"]
