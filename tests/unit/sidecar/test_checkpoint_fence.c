/* test_checkpoint_fence.c — what is believed by identity: rounds, attempts, votes, coordinators that were superseded. */
#include <criterion/criterion.h>

#include "checkpoint_group.h"

#define DATA 50000u

Test(checkpoint, rounds_only_rise_and_a_newer_attempt_ends_this_one, .timeout = 60)
{
    struct group g;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x200000005));
    cr_expect(!group_claim(&g, 0x200000005) && g.claim_error.kind == ERROR_CONFLICT, "%s", g.claim_error.text);
    cr_expect(checkpoint_newest_epoch(g.members[0].checkpoint) == 0x200000005);
    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_expect(!group_claim(&g, 0x200000004) && g.claim_error.kind == ERROR_CONFLICT, "%s", g.claim_error.text);
    cr_expect(checkpoint_newest_epoch(g.members[0].checkpoint) == 0x200000005, "the volume says how high to go");
    cr_expect(!group_claim(&g, 0x100000009) && g.claim_error.kind == ERROR_GONE, "%s", g.claim_error.text);
    cr_expect(group_claim(&g, 0x200000006), "%s", g.claim_error.text);
    group_release(&g);
}

static cJSON *vote_message(uint64_t epoch, int64_t step, const char *nonce)
{
    char text[24];
    cJSON *vote = json_object();
    epoch_format(epoch, text);
    json_put_text(vote, "op", "vote");
    json_put_text(vote, "epoch", text);
    json_put_int(vote, "step", step);
    json_put_text(vote, "nonce", nonce);
    json_put_int(vote, "bytes", IMAGE_HEADER + DATA);
    json_put_text(vote, "crc64nvme", "0123456789abcdef");
    return vote;
}

Test(checkpoint, votes_count_by_identity, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_vote_unheard(&g, 10, DATA));
    auto_free char *dir = group_path_of_step(&g, 10, "");
    struct generation generation;
    dir[strlen(dir) - 1] = '\0';
    cr_assert(layout_generation_parse(strrchr(dir, '/') + 1, &generation));
    /* Three votes of rank 1, one of no rank, one of another nonce: that is one vote. */
    auto_json cJSON *vote = vote_message(0x100000001, 10, generation.nonce);
    auto_json cJSON *other = vote_message(0x100000001, 10, "00000000000000000000000000000000");
    for (int i = 0; i < 3; i++)
        checkpoint_message(g.members[0].checkpoint, 1, vote);
    checkpoint_message(g.members[0].checkpoint, 3, vote);
    checkpoint_message(g.members[0].checkpoint, -1, vote);
    checkpoint_message(g.members[0].checkpoint, 2, other);
    (void)group_wait(&g, group_never, 0, 50);
    cr_expect(g.members[0].committed == -1 && g.members[0].failed == -1);
    /* The same rank with another image: two processes think that they are rank 1. */
    (void)cJSON_ReplaceItemInObject(vote, "crc64nvme", cJSON_CreateString("ffffffffffffffff"));
    checkpoint_message(g.members[0].checkpoint, 1, vote);
    cr_expect(group_wait(&g, group_until_failed, 10, 2000));
    cr_expect(strstr(g.members[2].why.text, "rank 1") != NULL && strstr(g.members[2].why.text, "twice") != NULL, "%s", g.members[2].why.text);
    g.drop = NULL;
    cr_assert(group_save(&g, 20, DATA));
    group_release(&g);
}

static cJSON *failed_message(uint64_t epoch, int64_t step)
{
    char text[24];
    cJSON *failed = json_object();
    epoch_format(epoch, text);
    json_put_text(failed, "op", "failed");
    json_put_text(failed, "epoch", text);
    json_put_int(failed, "step", step);
    json_put_text(failed, "text", "no space left on device");
    return failed;
}

Test(checkpoint, a_superseded_coordinator_removes_nothing_that_its_successor_committed, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    struct store_scan scan;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_vote_unheard(&g, 10, DATA));
    /* While it is stopped another one claims the next epoch, finds all the votes and commits. */
    struct store s = group_store_of(&g);
    cr_assert(store_scan(&s, &scan, &e) == 0);
    struct step_key key = { .job = GROUP_UID, .generation = scan.generations[0].generation, .world = 3 };
    cr_assert(store_claim(&s, 0x100000002, "chief-0", "0123456789abcdef0123456789abcdef", 3, &e) == 0, "%s", e.text);
    cr_assert(store_commit(&s, &key, 0x100000002, &e) == 0, "%s", e.text);
    /* It wakes up and gives the step up. */
    auto_json cJSON *failed = failed_message(0x100000001, 10);
    checkpoint_message(g.members[0].checkpoint, 1, failed);
    cr_assert(group_wait(&g, group_until_failed, 10, 2000));
    (void)group_wait(&g, group_never, 0, 200);
    auto_free char *commit = group_path_of_step(&g, 10, "COMMIT");
    cr_expect(commit != NULL && access(commit, F_OK) == 0, "what the successor committed is gone");
    store_scan_release(&scan);
    store_release(&s);
    group_release(&g);
}

static atomic_bool commit_begun;

static int commit_takes_a_while(void *ctx, const char *operation, const char *path)
{
    (void)ctx;
    if (strcmp(operation, "link") == 0 && strstr(path, "/COMMIT") != NULL) {
        atomic_store(&commit_begun, true);
        (void)usleep(300000);
    }
    return 0;
}

static bool until_commit_begun(struct group *g, int64_t ignored)
{
    (void)g;
    (void)ignored;
    return atomic_load(&commit_begun);
}

Test(checkpoint, when_all_have_voted_nothing_takes_the_step_back, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    fault_set(commit_takes_a_while, NULL);
    group_stage(&g, 10, DATA);
    cr_assert(group_wait(&g, until_commit_begun, 0, 5000));
    auto_json cJSON *failed = failed_message(0x100000001, 10);
    checkpoint_message(g.members[0].checkpoint, 1, failed);
    cr_expect(group_wait(&g, group_until_committed, 10, 5000));
    cr_expect(g.members[0].failed == -1, "%s", g.members[0].why.text);
    fault_set(NULL, NULL);
    (void)group_wait(&g, group_never, 0, 100);
    auto_free char *commit = group_path_of_step(&g, 10, "COMMIT");
    cr_expect(commit != NULL && access(commit, F_OK) == 0, "the committed step is gone");
    group_release(&g);
}

Test(checkpoint, garbage_from_a_peer_is_ignored, .timeout = 60)
{
    static const char *const GARBAGE[] = {
        "{}", "[]", "{\"op\":\"staged\"}", "{\"op\":\"staged\",\"epoch\":\"x\",\"step\":1}", "{\"op\":\"staged\",\"epoch\":\"1\",\"step\":-1}",
        "{\"op\":\"staged\",\"epoch\":\"4294967297\",\"step\":5,\"world\":99999999,\"bytes\":3}",
        "{\"op\":\"staged\",\"epoch\":\"4294967297\",\"step\":5,\"world\":2,\"bytes\":-3}",
        "{\"op\":\"vote\",\"epoch\":\"4294967297\",\"step\":5,\"nonce\":\"../../../../../../etc/passwd0000\",\"bytes\":1,\"crc64nvme\":\"0\"}",
        "{\"op\":\"persist\",\"epoch\":\"4294967297\",\"step\":5,\"nonce\":\"/\",\"world\":2}",
        "{\"op\":\"committed\",\"epoch\":\"99\",\"step\":5,\"uri\":\"file:///x\"}", "{\"op\":\"no such\",\"epoch\":\"1\",\"step\":1}",
        "{\"op\":\"aborted\",\"epoch\":\"4294967297\",\"step\":77}",
    };
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x100000001));
    for (size_t i = 0; i < COUNT(GARBAGE); i++) {
        auto_json cJSON *message = NULL;
        cr_assert(json_parse(GARBAGE[i], strlen(GARBAGE[i]), &message, &e) == 0);
        for (int32_t rank = 0; rank < 2; rank++)
            checkpoint_message(g.members[rank].checkpoint, 1, message);
    }
    cr_assert(group_save(&g, 10, DATA));
    cr_expect(g.members[0].committed_count == 1 && g.members[0].failed_count == 0);
    group_release(&g);
}
