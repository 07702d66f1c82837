"""The failure matrix of checkpoints and restarts: which test holds each row, and which rows nobody holds yet.

A row's outcome is asserted by the tests that it names; here it is checked that they are there, so that none is lost by renaming.
"""

import pathlib
import re

import pytest

UNIT, INTEGRATION, CLUSTER = "tests/unit/sidecar", "tests/integration", "tests/cluster"

# failure, outcome, where, tests
ROWS = {
    1: ("worker crash before staging", "all start again in place from the newest step that all have", [
        (f"{INTEGRATION}/test_sidecar.py", "test_a_killed_process_makes_all_start_again"),
        (f"{UNIT}/test_checkpoint.c", "without_a_volume_a_step_that_all_hold_counts_and_survives_trainers_and_sidecars")]),
    2: ("worker crash while it writes a slot", "the slot is dropped, the step before is used", [
        (f"{UNIT}/test_slots.c", "a_dead_trainer_leaves_no_half_image")]),
    3: ("worker crash after all have staged", "committed without the trainers", [
        (f"{UNIT}/test_checkpoint.c", "a_step_that_all_staged_is_committed_although_the_trainers_are_dead"),
        (f"{INTEGRATION}/test_sidecar.py", "test_what_all_have_staged_is_not_lost_with_the_processes")]),
    4: ("one worker has not staged the step", "the step before is agreed on", [
        (f"{UNIT}/test_checkpoint.c", "when_one_rank_has_not_staged_the_step_before_is_restored"),
        (f"{UNIT}/test_tally.c", "is_dead_when_a_rank_has_left_the_step_out")]),
    5: ("sidecar crash while it persists", "a reader sees the old or the new step", [
        (f"{UNIT}/test_writer.c", "a_crash_before_any_change_of_the_volume_leaves_the_old_or_the_new_step"),
        (f"{UNIT}/test_slots.c", "after_a_restart_only_what_is_provably_complete_is_taken_over")]),
    6: ("sidecar crash between vote and COMMIT", "its vote counts once", [(f"{UNIT}/test_writer.c", "a_vote_is_given_once")]),
    7: ("coordinator crash before COMMIT", "its successor commits or aborts", [
        (f"{UNIT}/test_checkpoint.c", "a_coordinator_that_died_between_votes_and_commit_is_made_up_for"),
        (f"{UNIT}/test_checkpoint.c", "a_restarted_coordinator_goes_on_with_what_members_still_save")]),
    8: ("coordinator crash after COMMIT", "committed", [
        (f"{UNIT}/test_writer.c", "a_crash_before_any_change_of_the_volume_leaves_the_old_or_the_new_step")]),
    9: ("node loss", "the pod is made anew, the job goes on from the volume", [(f"{CLUSTER}/test_faults.py", "test_a_node_is_lost")]),
    11: ("volume full", "the save fails in words, what is committed stays, training goes on", [
        (f"{UNIT}/test_writer.c", "a_full_file_system_is_an_error_and_leaves_room_for_what_is_committed"),
        (f"{UNIT}/test_checkpoint_damage.c", "a_disk_that_is_full_at_the_claim_leaves_memory_and_is_used_again_when_there_is_room")]),
    12: ("death in an upload", "invisible, and swept", [(f"{INTEGRATION}/test_checkpoint_s3.py", "test_an_upload_whose_writer_died_is_swept")]),
    13: ("S3 answers 5xx, resets", "tried again, nothing lost", [
        (f"{INTEGRATION}/test_checkpoint_s3.py", "test_what_may_pass_is_tried_again_and_nothing_is_lost")]),
    14: ("200 with an error", "a failure, tried again", [
        (f"{INTEGRATION}/test_checkpoint_s3.py", "test_what_may_pass_is_tried_again_and_nothing_is_lost")]),
    15: ("an answer is lost", "looked after, no second upload", [
        (f"{INTEGRATION}/test_checkpoint_s3.py", "test_what_may_pass_is_tried_again_and_nothing_is_lost")]),
    16: ("expired credentials", "fetched anew", [(f"{INTEGRATION}/test_checkpoint_s3.py", "test_expired_credentials_are_fetched_anew")]),
    17: ("slow volume", "saves are skipped, the step is not held up", [
        (f"{INTEGRATION}/test_client_core.py", "test_a_save_is_skipped_while_both_slots_are_busy")]),
    20: ("wrong bytes on the volume", "never handed out, an older step", [
        (f"{UNIT}/test_checkpoint_damage.c", "a_flipped_bit_is_never_handed_out_and_the_step_before_is_restored"),
        (f"{INTEGRATION}/test_checkpoint_s3.py", "test_damage_on_the_server_is_found")]),
    21: ("two generations at once", "the newer epoch wins", [
        (f"{UNIT}/test_writer.c", "of_two_that_claim_one_epoch_one_gets_it"),
        (f"{UNIT}/test_checkpoint_fence.c", "rounds_only_rise_and_a_newer_attempt_ends_this_one")]),
    22: ("a stale coordinator resumes", "its commit is in nobody's history, it deletes nothing", [
        (f"{UNIT}/test_writer.c", "what_a_stalled_coordinator_commits_late_is_in_nobodys_history"),
        (f"{UNIT}/test_checkpoint_fence.c", "a_superseded_coordinator_removes_nothing_that_its_successor_committed")]),
    23: ("retention against a reader", "removed in two steps", [
        (f"{UNIT}/test_checkpoint_slots.c", "old_checkpoints_go_in_two_steps_and_foreign_files_stay")]),
    28: ("memory for slots too small", "an error in words", [(f"{UNIT}/test_checkpoint_damage.c", "slots_that_do_not_fit_are_an_error_in_words")]),
    29: ("another number of ranks", "dealt out anew", [
        (f"{UNIT}/test_checkpoint_world.c", "a_step_is_restored_by_another_number_of_ranks"),
        (f"{INTEGRATION}/test_world_size.py", "test_a_job_goes_on_with_more_ranks_and_with_fewer")]),
    30: ("one rank twice", "identities count, not messages", [
        (f"{UNIT}/test_checkpoint_fence.c", "votes_count_by_identity"), (f"{UNIT}/test_tally.c", "counts_identities_not_messages"),
        (f"{INTEGRATION}/test_sidecar.py", "test_a_second_sidecar_on_one_directory_is_refused")]),
    31: ("hang", "evidence, then all start again; the second time with a new pod", [
        (f"{INTEGRATION}/test_hang.py", "test_a_rank_that_hangs_is_named_with_stacks_of_all_and_all_start_again"),
        (f"{INTEGRATION}/test_hang.py", "test_one_that_hangs_again_gets_a_new_pod")]),
    32: ("poisoned checkpoint", "an older one after three crashes", [
        (f"{INTEGRATION}/test_poison.py", "test_after_three_crashes_right_after_a_restore_an_older_checkpoint_is_taken")]),
    34: ("S3 without conditional writes", "one of two gets the epoch", [
        (f"{INTEGRATION}/test_checkpoint_s3.py", "test_two_that_claim_one_epoch_do_not_both_get_it")]),
}

# Rows that no test holds, and why. A test that comes takes its row out of here.
OPEN = {
    10: "no replica in a peer's memory yet: a lost node always means the volume",
    18: "a volume that hangs: persist has a thread of its own, but no test freezes one",
    19: "power cut: the order of writes, syncs and renames is not recorded and replayed yet",
    24: "clock skew: nothing is decided by a wall clock, and no test shifts one",
    25: "a slot that the trainer writes to after it was staged",
    26: "SIGTERM: what is staged is committed within the grace period, but nothing new is staged because of it",
    27: "a real kill for memory in a container, with its exit told",
    33: "a rename over NFS whose answer is lost",
}


def test_every_row_has_its_place():
    assert set(ROWS) | set(OPEN) == set(range(1, 35)) and not set(ROWS) & set(OPEN)


@pytest.mark.parametrize("number", ROWS)
def test_the_tests_of_a_row_are_there(root, number):
    for file, name in ROWS[number][2]:
        text = pathlib.Path(root, file).read_text()
        assert re.search(rf"\bdef {name}\(|\bTest\(\w+, {name}[,)]", text), f"row {number}: {file} has no {name}"
