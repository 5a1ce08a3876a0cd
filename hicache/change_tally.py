"""What one change by hand has concerned so far, for the reply and for the audit log."""

from __future__ import annotations

import dataclasses

from hicache.audit_log import Caller, Deed


@dataclasses.dataclass(slots=True, kw_only=True)
class ChangeTally:
    """What a change concerns so far."""

    is_made: bool = False
    num_pages: int = 0
    num_bytes: int = 0

    def add(self, num_pages: int, num_bytes: int) -> None:
        """Count pages that were changed."""
        self.is_made = True
        self.num_pages += num_pages
        self.num_bytes += num_bytes

    def undo(self) -> None:
        """Take note that nothing of it stands."""
        self.is_made, self.num_pages, self.num_bytes = False, 0, 0

    def deed(self, caller: Caller, method: str, request: str) -> Deed:
        """Return what the audit log has to say."""
        return Deed(
            peer=caller.peer,
            caller=caller.name,
            method=method,
            request=request,
            num_pages=self.num_pages,
            num_bytes=self.num_bytes,
        )
