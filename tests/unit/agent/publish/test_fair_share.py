# SPDX-License-Identifier: Apache-2.0
from nccl_inspector.agent.fair_share import fair_job_shares, fair_shares
from tests.support.boxes import fixed_chance


def test_where_there_is_room_for_all_everybody_gets_what_they_want() -> None:
    assert fair_shares({"a": 3, "b": 0, "c": 7}, 10) == {"a": 3, "b": 0, "c": 7}
    assert fair_shares({}, 10) == {}


def test_who_wants_little_gets_it_and_the_others_share_the_rest_equally() -> None:
    assert fair_shares({"a": 100, "b": 10, "c": 900}, 100) == {"a": 45, "b": 10, "c": 45}
    assert fair_shares({"a": 5, "b": 5}, 0) == {"a": 0, "b": 0}


def test_any_shares_fit_waste_nothing_and_cut_nobody_below_an_equal_part() -> None:
    chance = fixed_chance(7)
    for _ in range(2000):
        wanted = {key: chance.randrange(1000) for key in range(chance.randrange(1, 12))}
        room = chance.randrange(3000)
        shares = fair_shares(wanted, room)
        assert shares.keys() == wanted.keys()
        assert sum(shares.values()) <= room
        cut = {shares[key] for key in wanted if shares[key] < wanted[key]}
        assert len(cut) <= 1, "all that are cut get the same"
        if cut:
            assert min(cut) >= max(shares.values()), "nobody has more than those that are cut"
            assert sum(shares.values()) > room - len(wanted), "what is left cannot be divided"
            assert min(cut) >= room // len(wanted)


def test_twenty_jobs_of_one_user_get_no_more_than_one_job_of_another() -> None:
    wanted = dict.fromkeys(range(20), 8_000_000) | {99: 900_000}
    users = dict.fromkeys(range(20), 1001) | {99: 1002}
    shares = fair_job_shares(wanted, users, 2_000_000)
    assert shares[99] == 900_000
    assert {shares[job] for job in range(20)} == {1_100_000 // 20}
