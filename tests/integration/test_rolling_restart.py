"""Every service of a mesh is restarted in turn while clients stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rolling_restart import restart_each, whole_mesh
from tests.streaming_load import StreamingLoad, asks


@pytest.mark.timeout(300)
def test_a_rolling_restart_of_all_services_costs_no_request(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nobody's request fails, no answer differs, and no token comes twice.

    Valkey comes back empty, both schedulers are the active one in turn, and requests are moved from
    route to route: clients notice pauses, and have to try again only what had no output yet.
    """
    with whole_mesh(tiny, tmp_path_factory.mktemp("m")) as mesh:
        load = StreamingLoad(mesh.servers())
        load.learn(asks())
        with load.running():
            restarts = list(restart_each(mesh, load))
        for each in restarts:
            print(each)
        assert [0] * 9 == [each.exit_status for each in restarts]
        assert [] == load.errors, mesh.logs()
        assert 0 == load.num_differing
        assert load.num_ended > 4 * len(restarts)
        print(f"{load.num_ended} requests")
