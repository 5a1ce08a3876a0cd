"""Certificate files as credentials of gRPC servers and channels.

A server looks at its files at each new connection, so that new ones are used without a restart and
without an end of the connections that stand. A channel keeps those it was made with.
Source: https://grpc.github.io/grpc/python/grpc.html#grpc.dynamic_ssl_server_credentials
"""

from __future__ import annotations

import grpc

from chunkmesh.trust.tls_files import TlsFiles, TlsPems


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials of a server; with authorities it asks every client for a certificate."""
    first = files.current()
    used = first

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Return what to use from now on, None for what is in use; called at each handshake."""
        nonlocal used
        now = files.current()
        if now is used:
            return None
        used = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        changed,  # type: ignore[arg-type] # None is allowed, says its documentation
        require_client_authentication=first.authorities is not None,
    )


def channel_credentials(pems: TlsPems) -> grpc.ChannelCredentials:
    """Return credentials of a channel."""
    return grpc.ssl_channel_credentials(
        root_certificates=pems.authorities,
        private_key=pems.key,
        certificate_chain=pems.certificate,
    )


def _configuration(pems: TlsPems) -> grpc.ServerCertificateConfiguration:
    assert pems.certificate is not None, "a server shows a certificate"
    assert pems.key is not None
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.authorities
    )
