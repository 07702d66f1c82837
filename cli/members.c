#include "cli/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static int unknown_member(const struct training_job *job, const struct members *all, const char *word, struct error *e)
{
    auto_free const char **names = xcalloc(all->count + 1, sizeof *names);
    for (size_t i = 0; i < all->count; i++)
        names[i] = all->names[i];
    const char *near = text_nearest(word, names);
    return error_set(e, ERROR_INVALID, "job %s has no member \"%.60s\"%s%s%s", job->name, word, near ? "; did you mean \"" : "",
                     near ? near : "", near ? "\"?" : "");
}

static int by_words(const struct training_job *job, const struct members_wish *wish, const struct members *all, struct members *ret,
                    struct error *e)
{
    ret->names = xcalloc(wish->count, sizeof *ret->names);
    for (size_t i = 0; i < wish->count; i++) {
        if (!members_have(all, wish->words[i]))
            return unknown_member(job, all, wish->words[i], e);
        if (!members_have(ret, wish->words[i]))
            snprintf(ret->names[ret->count++], sizeof ret->names[0], "%s", wish->words[i]);
    }
    return 0;
}

static int by_role_and_rank(const struct training_job *job, const struct members_wish *wish, struct members *ret, struct error *e)
{
    enum job_role wanted = ROLE_COUNT;
    if (wish->role && (!role_parse(wish->role, &wanted) || !job->spec.roles[wanted].present))
        return error_set(e, ERROR_INVALID, "job %s has no role \"%.60s\"", job->name, wish->role);
    ret->names = xcalloc((size_t)job_replicas(job) + 1, sizeof *ret->names);
    for (enum job_role role = 0; role < ROLE_COUNT; role++) {
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++) {
            if ((!wish->role || role == wanted) && (wish->rank < 0 || job_rank(job, role, i) == wish->rank))
                job_member_name(role, i, ret->names[ret->count++]);
        }
    }
    if (ret->count == 0 && wish->rank >= 0)
        return error_set(e, ERROR_INVALID, "job %s has no rank %lld%s%.60s; its ring has the ranks 0 to %d", job->name, (long long)wish->rank,
                         wish->role ? " of role " : "", wish->role ? wish->role : "", job_world_size(job) - 1);
    return 0;
}

int members_choose(const struct training_job *job, const struct members_wish *wish, struct members *ret, struct error *e)
{
    static const struct members_wish EVERYBODY = { .rank = -1 };
    struct members all = { .names = NULL }, m = { .all = wish->count == 0 && !wish->role && wish->rank < 0 };
    if (wish->count && (wish->role || wish->rank >= 0))
        return error_set(e, ERROR_INVALID, "\"%.60s\" and --rank or --role: name members, or choose them by rank and role", wish->words[0]);
    int rc = by_role_and_rank(job, wish->count ? &EVERYBODY : wish, wish->count ? &all : &m, e);
    if (rc == 0 && wish->count)
        rc = by_words(job, wish, &all, &m, e);
    members_release(&all);
    if (rc < 0)
        members_release(&m);
    else
        *ret = m;
    return rc;
}

bool members_have(const struct members *m, const char *member)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->names[i], member) == 0)
            return true;
    return false;
}

int members_width(const struct members *m)
{
    size_t width = 0;
    for (size_t i = 0; i < m->count; i++)
        width = strlen(m->names[i]) > width ? strlen(m->names[i]) : width;
    return (int)width;
}

void members_release(struct members *m)
{
    free(m->names);
    *m = (struct members){ .names = NULL };
}
