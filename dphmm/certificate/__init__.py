"""Certificates of releases: everything public that a promise follows from, for others to check without this package."""

from dphmm.certificate.writer import CertificateWriter

__all__ = ["CertificateWriter"]
