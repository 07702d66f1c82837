#include <criterion/criterion.h>

#include "job/gang.h"
#include "tests/unit/job/job_fixture.h"

#define SERVES(...) { .looked = true, .served = { __VA_ARGS__ } }
#define NATIVE(checked, works) .native_checked = (checked), .native_works = (works)

static const struct { const char *name; enum gang_kind asked; struct gang_view seen; enum gang_kind after; bool known; enum gang_kind kind; } CHOICES[] = {
    { "nothing is there", GANG_AUTO, SERVES(false), GANG_AUTO, true, GANG_NONE },
    { "Volcano is there", GANG_AUTO, SERVES([GANG_VOLCANO] = true), GANG_AUTO, true, GANG_VOLCANO },
    { "Volcano comes before coscheduling", GANG_AUTO, SERVES([GANG_VOLCANO] = true, [GANG_COSCHEDULING] = true), GANG_AUTO, true, GANG_VOLCANO },
    { "Volcano is silent", GANG_AUTO, SERVES([GANG_VOLCANO] = true, [GANG_COSCHEDULING] = true), GANG_VOLCANO, true, GANG_COSCHEDULING },
    { "both are silent", GANG_AUTO, SERVES([GANG_VOLCANO] = true, [GANG_COSCHEDULING] = true), GANG_COSCHEDULING, true, GANG_NONE },
    { "native, not tried", GANG_AUTO, { .looked = true, .served = { [GANG_NATIVE] = true } }, GANG_AUTO, false, GANG_AUTO },
    { "native works", GANG_AUTO, { .looked = true, .served = { [GANG_NATIVE] = true, [GANG_VOLCANO] = true }, NATIVE(true, true) }, GANG_AUTO, true, GANG_NATIVE },
    { "native is off", GANG_AUTO, { .looked = true, .served = { [GANG_NATIVE] = true, [GANG_VOLCANO] = true }, NATIVE(true, false) }, GANG_AUTO, true, GANG_VOLCANO },
    { "native is off and alone", GANG_AUTO, { .looked = true, .served = { [GANG_NATIVE] = true }, NATIVE(true, false) }, GANG_AUTO, true, GANG_NONE },
    { "the user's word, served or not", GANG_VOLCANO, SERVES(false), GANG_AUTO, true, GANG_VOLCANO },
    { "gates are never taken by themselves", GANG_SCHEDULING_GATES, SERVES([GANG_VOLCANO] = true), GANG_AUTO, true, GANG_SCHEDULING_GATES },
    { "none", GANG_NONE, SERVES([GANG_VOLCANO] = true), GANG_AUTO, true, GANG_NONE },
};

Test(gang, the_first_that_is_there_and_proves_itself_is_taken)
{
    for (size_t i = 0; i < COUNT(CHOICES); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        enum gang_kind kind = GANG_AUTO;
        job->spec.scheduling.gang = CHOICES[i].asked;
        bool known = gang_choose(job, &CHOICES[i].seen, CHOICES[i].after, &kind);
        cr_expect(known == CHOICES[i].known && (!known || kind == CHOICES[i].kind), "case %s: %s", CHOICES[i].name, gang_name(kind));
    }
}

static const struct { const char *name; enum gang_kind asked, kind; bool has_group; const char *phase; bool admitted; } ADMISSIONS[] = {
    { "no group is needed", GANG_AUTO, GANG_NONE, false, "", true },
    { "gates need none", GANG_SCHEDULING_GATES, GANG_SCHEDULING_GATES, false, "", true },
    { "not there yet", GANG_VOLCANO, GANG_VOLCANO, false, "", false },
    { "Volcano has not looked", GANG_VOLCANO, GANG_VOLCANO, true, "", false },
    { "Volcano holds it back", GANG_VOLCANO, GANG_VOLCANO, true, "Pending", false },
    { "Volcano took it in", GANG_AUTO, GANG_VOLCANO, true, "Inqueue", true },
    { "it ran before", GANG_VOLCANO, GANG_VOLCANO, true, "Running", true },
    { "coscheduling, asked for", GANG_COSCHEDULING, GANG_COSCHEDULING, true, "", true },
    { "coscheduling, found, silent", GANG_AUTO, GANG_COSCHEDULING, true, "", false },
    { "coscheduling, found, answers", GANG_AUTO, GANG_COSCHEDULING, true, "Pending", true },
    { "native needs no answer", GANG_AUTO, GANG_NATIVE, true, "", true },
};

Test(gang, pods_come_when_the_scheduler_took_the_group_in)
{
    for (size_t i = 0; i < COUNT(ADMISSIONS); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        struct gang_view seen = { .looked = true, .has_group = ADMISSIONS[i].has_group };
        job->spec.scheduling.gang = ADMISSIONS[i].asked;
        (void)snprintf(seen.phase, sizeof seen.phase, "%s", ADMISSIONS[i].phase);
        cr_expect(gang_is_admitted(job, ADMISSIONS[i].kind, &seen) == ADMISSIONS[i].admitted, "case %s", ADMISSIONS[i].name);
    }
}

static const struct { const char *name; int32_t chief, worker, ps; int64_t available, least; int32_t expected; } MEMBERS[] = {
    { "all", 1, 3, 2, 0, 0, 6 },
    { "minAvailable", 1, 3, 2, 4, 0, 4 },
    { "minAvailable above all of an elastic job", 0, 2, 0, 8, 2, 2 },
    { "an elastic job starts with its least", 1, 8, 2, 0, 3, 6 },
    { "minAvailable wins", 1, 8, 2, 5, 3, 5 },
    { "a least that is all", 0, 4, 0, 0, 4, 4 },
};

Test(gang, so_many_pods_are_placed_together)
{
    for (size_t i = 0; i < COUNT(MEMBERS); i++) {
        auto_job struct training_job *job = fixture_job(MEMBERS[i].chief, 0, MEMBERS[i].worker, MEMBERS[i].ps, 0);
        job->spec.scheduling.min_available = (struct optional_int){ MEMBERS[i].available > 0, MEMBERS[i].available };
        job->spec.min_replicas = (struct optional_int){ MEMBERS[i].least > 0, MEMBERS[i].least };
        cr_expect_eq(gang_min_member(job), MEMBERS[i].expected, "case %s: %d", MEMBERS[i].name, gang_min_member(job));
    }
}

static void set_resources(struct training_job *job, enum job_role role, const char *resources)
{
    auto_free char *text = xasprintf("{\"spec\":{\"containers\":[{\"name\":\"a\",\"resources\":%s},{\"name\":\"b\"}]}}", resources);

    cJSON_Delete(job->spec.roles[role].template);
    job->spec.roles[role].template = fixture_json(text);
}

Test(gang, what_the_gang_needs_is_the_sum_of_its_first_members)
{
    auto_job struct training_job *job = fixture_job(1, 0, 4, 0, 0);

    set_resources(job, ROLE_CHIEF, "{\"requests\":{\"cpu\":\"1\",\"memory\":\"1Gi\"}}");
    set_resources(job, ROLE_WORKER, "{\"requests\":{\"cpu\":\"250m\"},\"limits\":{\"cpu\":\"4\",\"memory\":\"512Mi\",\"nvidia.com/gpu\":\"2\"}}");
    job->spec.sidecar.resources = fixture_json("{\"requests\":{\"cpu\":\"0.1\"}}");
    job->spec.scheduling.min_available = (struct optional_int){ true, 3 };
    auto_json cJSON *group = gang_group_build(job, GANG_VOLCANO, "scheduling.volcano.sh/v1beta1");
    const cJSON *least = json_at(group, "spec.minResources");
    cr_expect_str_eq(json_text(least, "cpu", ""), "1800m", "%s", json_text(least, "cpu", ""));
    cr_expect_str_eq(json_text(least, "memory", ""), "2147483648", "%s", json_text(least, "memory", ""));
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(least, "nvidia.com/gpu")), "4");
    job->spec.scheduling.min_resources = fixture_json("{\"cpu\":\"7\"}");
    auto_json cJSON *said = gang_group_build(job, GANG_VOLCANO, "scheduling.volcano.sh/v1beta1");
    cr_expect_eq(cJSON_GetArraySize(json_at(said, "spec.minResources")), 1);
}

Test(gang, each_scheduler_gets_the_group_that_it_knows)
{
    auto_job struct training_job *job = fixture_job(0, 0, 3, 0, 0);

    job->spec.scheduling.queue = xstrdup("team-a");
    job->spec.scheduling.priority_class = xstrdup("high");
    job->spec.scheduling.topology_required = xstrdup("rack");
    job->spec.scheduling.schedule_timeout_s = (struct optional_int){ true, 60 };
    auto_json cJSON *volcano = gang_group_build(job, GANG_VOLCANO, "scheduling.volcano.sh/v1beta1");
    cr_expect_str_eq(json_text(volcano, "apiVersion", ""), "scheduling.volcano.sh/v1beta1");
    cr_expect_str_eq(json_text(volcano, "metadata.name", ""), "mnist");
    cr_expect(json_int(volcano, "spec.minMember", 0) == 3 && json_at(volcano, "spec.scheduleTimeoutSeconds") == NULL);
    cr_expect_str_eq(json_text(volcano, "spec.queue", ""), "team-a");
    cr_expect_str_eq(json_text(volcano, "spec.priorityClassName", ""), "high");
    auto_json cJSON *plugins = gang_group_build(job, GANG_COSCHEDULING, "scheduling.x-k8s.io/v1alpha1");
    cr_expect(json_int(plugins, "spec.scheduleTimeoutSeconds", 0) == 60 && json_at(plugins, "spec.queue") == NULL);
    auto_json cJSON *native = gang_group_build(job, GANG_NATIVE, "scheduling.k8s.io/v1alpha2");
    cr_expect(json_int(native, "spec.schedulingPolicy.gang.minCount", 0) == 3 && json_at(native, "spec.minMember") == NULL);
    cr_expect_str_eq(json_text(cJSON_GetArrayItem(json_at(native, "spec.schedulingConstraints.topology"), 0), "key", ""), "rack");
}

static const struct { const char *name, *group, *phase, *message; int32_t members; } GROUPS_SEEN[] = {
    { "new", "{\"spec\":{\"minMember\":3}}", "", "", 3 },
    { "Volcano's", "{\"spec\":{\"minMember\":3},\"status\":{\"phase\":\"Inqueue\"}}", "Inqueue", "", 3 },
    { "Volcano says why", "{\"spec\":{\"minMember\":2},\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"Unschedulable\",\"status\":\"True\","
      "\"message\":\"2/2 tasks in gang unschedulable\"}]}}", "Pending", "2/2 tasks in gang unschedulable", 2 },
    { "what was wrong once", "{\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Unschedulable\",\"status\":\"False\",\"message\":\"x\"}]}}", "Running", "", 0 },
    { "native, placed", "{\"spec\":{\"schedulingPolicy\":{\"gang\":{\"minCount\":4}}},\"status\":{\"conditions\":[{\"type\":\"PodGroupInitiallyScheduled\","
      "\"status\":\"True\"}]}}", "Scheduled", "", 4 },
    { "native, not placed", "{\"status\":{\"conditions\":[{\"type\":\"PodGroupInitiallyScheduled\",\"status\":\"False\",\"reason\":\"Unschedulable\","
      "\"message\":\"no room\"}]}}", "Unschedulable", "no room", 0 },
    { "of no shape", "{\"spec\":[],\"status\":7}", "", "", 0 },
    { "a size that is none", "{\"spec\":{\"minMember\":99999999999}}", "", "", 0 },
};

Test(gang, what_a_scheduler_says_is_read_whoever_it_is)
{
    for (size_t i = 0; i < COUNT(GROUPS_SEEN); i++) {
        auto_json cJSON *group = fixture_json(GROUPS_SEEN[i].group);
        char phase[32], message[256];
        int32_t members;
        gang_group_read(group, phase, message, &members);
        cr_expect(strcmp(phase, GROUPS_SEEN[i].phase) == 0 && strcmp(message, GROUPS_SEEN[i].message) == 0 && members == GROUPS_SEEN[i].members,
                  "case %s: %s, %s, %d", GROUPS_SEEN[i].name, phase, message, members);
    }
}
