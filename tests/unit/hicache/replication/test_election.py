"""Who evicts, by a clock of the test's."""

from __future__ import annotations

from hicache.replication.election import TTL_S, Election


class Key:
    """The key in Redis, which ends by itself."""

    def __init__(self) -> None:
        self.holder: bytes | None = None
        self.ends_s = 0.0

    def seize(self, name: bytes, now_s: float) -> bytes:
        """Set the key if there is none; return the holder."""
        if self.holder is None or now_s >= self.ends_s:
            self.holder, self.ends_s = name, now_s + TTL_S
        return self.holder

    def renew(self, now_s: float) -> bytes:
        """Let it live on if it is there; return the holder, empty if there is none."""
        if self.holder is None or now_s >= self.ends_s:
            return b""
        self.ends_s = now_s + TTL_S
        return self.holder


def stand(election: Election, key: Key, now_s: float, *, took_s: float = 0.0) -> None:
    """Do what the shell does."""
    if election.holds(now_s):
        holder = key.renew(now_s + took_s)
    else:
        holder = key.seize(election.name, now_s + took_s)
    election.answered(holder, asked_s=now_s)


def test_there_is_never_more_than_one() -> None:
    """Three stand every 0.9 s; the first dies at 5 s, and another follows within the key's life."""
    key, dead_s = Key(), 5.0
    elections = [Election(b"a"), Election(b"b"), Election(b"c")]
    holders = []
    for step in range(200):
        now_s = step / 10
        for index, election in enumerate(elections):
            if step % 9 == index and not (index == 0 and now_s > dead_s):
                stand(election, key, now_s)
        live = [election.name for election in elections if election.holds(now_s)]
        assert len(live) <= 1
        holders.append(live[0] if live else b"")
    assert holders[0] == b"a"
    assert holders[-1] in {b"b", b"c"}
    assert holders.count(b"") <= 20


def test_a_slow_answer_counts_from_the_question() -> None:
    """The key may have ended before the answer came."""
    key, slow = Key(), Election(b"a")
    stand(slow, key, 0.0)
    assert slow.until_s < TTL_S
    assert slow.holds(2.4)
    assert not slow.holds(TTL_S)


def test_a_key_that_is_gone_or_anothers_ends_it() -> None:
    """A flush takes the key; another one may have it by then."""
    key, first, second = Key(), Election(b"a"), Election(b"b")
    stand(first, key, 0.0)
    key.holder = None
    stand(first, key, 1.0)
    assert not first.holds(1.0)
    stand(second, key, 1.0)
    stand(first, key, 1.1)
    assert (first.holds(1.1), second.holds(1.1)) == (False, True)


def test_a_redis_that_takes_no_key_is_everybodys() -> None:
    """Nobody else can make room."""
    election = Election(b"a")
    election.answered(None, asked_s=1.0)
    assert election.holds(1.0)
    election.lost()
    assert not election.holds(1.0)
