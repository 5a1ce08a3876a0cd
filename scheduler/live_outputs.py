"""The outputs that wait or run, by their request. Pure."""

from __future__ import annotations

from scheduler.census import Census, census
from scheduler.request import Request


class LiveOutputs:
    """A request is live until the last of its outputs has ended."""

    def __init__(self) -> None:
        """Begin with none."""
        self._outputs: dict[str, dict[int, Request]] = {}
        """Outputs of each request by child, none of them FINISHED; never empty."""

    def __len__(self) -> int:
        return len(self._outputs)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._outputs

    def request_ids(self) -> list[str]:
        """Return all requests in the order of arrival."""
        return list(self._outputs)

    def of(self, request_id: str) -> list[Request]:
        """Return the outputs of a request, ascending by child; none if it is not live."""
        return list(self._outputs.get(request_id, {}).values())

    def find(self, request_id: str, child: int) -> Request | None:
        """Return one output, if it is live."""
        return self._outputs.get(request_id, {}).get(child)

    def bound_to(self, epoch: int) -> list[Request]:
        """Return the outputs that wait for a route or run on it, by rank."""
        outputs = (each for group in self._outputs.values() for each in group.values())
        return sorted((each for each in outputs if each.epoch == epoch), key=lambda each: each.rank)

    def census(self) -> Census:
        """Count the requests that run, and those that wait."""
        return census(outputs.values() for outputs in self._outputs.values())

    def add(self, *requests: Request) -> None:
        """Take outputs in; children of a request come in order."""
        for request in requests:
            self._outputs.setdefault(request.request_id, {})[request.child] = request

    def remove(self, request: Request) -> None:
        """Forget an output, and its request with the last one."""
        outputs = self._outputs[request.request_id]
        del outputs[request.child]
        if not outputs:
            del self._outputs[request.request_id]
