"""The requests that wait or run: where their news goes, and when the stages worked on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from scheduler.actions import Failed, Finished, Output, Progress, PromptLogprobs
from scheduler.request_metrics import observe_token
from scheduler.request_names import id_and_user
from scheduler.request_stream import RequestStream
from scheduler.timeline import Track, to_us
from scheduler.timeline_history import RequestTimeline, TimelineHistory

News: TypeAlias = Progress | PromptLogprobs | Output | Finished | Failed


class OpenRequests:
    """Owner of each request's stream until the request has ended, and of timelines for longer.

    Requests go by their names (request_names.py), which is what the engine has for request_id.
    """

    def __init__(self, on_end: Callable[[str], None]) -> None:
        """Begin with none; on_end hears the name of each that ends."""
        self._on_end = on_end
        self._streams: dict[str, RequestStream] = {}
        self._tracks: dict[str, Track] = {}
        """Of the same requests."""
        self._ended_timelines = TimelineHistory()

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, request_id: str, stream: RequestStream, track: Track) -> None:
        """Take in a request whose name is free."""
        self._streams[request_id] = stream
        self._tracks[request_id] = track

    def stream(self, request_id: str) -> RequestStream | None:
        """Return the stream of a request, if that waits or runs."""
        return self._streams.get(request_id)

    def names_of(self, request_id: str) -> list[str]:
        """Return what the requests of an id are called, of all users."""
        return [name for name in self._streams if id_and_user(name)[0] == request_id]

    def streams(self) -> list[tuple[str, RequestStream]]:
        """Return all of them with their requests' names."""
        return list(self._streams.items())

    def tell(self, news: News, now_s: float) -> None:
        """Hand news to the request's Generate call, if it is still there."""
        stream = self._streams.get(news.request_id)
        if stream is None:
            return
        match news:
            case Progress():
                stream.progress(news)
            case PromptLogprobs():
                stream.prompt_logprobs(news)
            case Output():
                time_taken = stream.output(news, now_s)
                if time_taken is not None:
                    observe_token(time_taken)
            case Finished():
                stream.finish(news)
                if stream.has_finished:
                    self.end(news.request_id)
            case Failed():
                stream.fail(news.error)
                self.end(news.request_id)

    def end(self, request_id: str) -> None:
        """Forget a request that has ended, but for its timeline."""
        stream, track = self._streams.pop(request_id), self._tracks.pop(request_id)
        ended_us = to_us(time.monotonic()) - track.arrived_us
        self._ended_timelines.add(_timeline(request_id, stream, track, ended_us=ended_us))
        self._on_end(request_id)

    def timelines(self) -> list[RequestTimeline]:
        """Return those of the requests that run, and of the last that have ended."""
        running = [
            _timeline(request_id, stream, self._tracks[request_id])
            for request_id, stream in self._streams.items()
        ]
        return [*self._ended_timelines, *running]


def _timeline(
    name: str, stream: RequestStream, track: Track, *, ended_us: int | None = None
) -> RequestTimeline:
    """Put together what is known of a request."""
    request_id, user = id_and_user(name)
    return RequestTimeline(
        request_id=request_id,
        user=user,
        prompt_tokens=stream.prompt_tokens,
        cached_tokens=stream.cached_tokens,
        output_tokens=stream.output_tokens,
        first_token_us=round(1000 * stream.ttft_ms) if stream.output_tokens else None,
        ended_us=ended_us,
        finish_reason="" if ended_us is None else stream.finish_reason,
        track=track,
    )
