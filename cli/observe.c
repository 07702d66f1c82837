#include "cli/observe.h"

#include <string.h>

#include "base/mem.h"

struct view_pod *observe_view_pods(const struct pod_view *pods, size_t count)
{
    struct view_pod *list = xcalloc(count + 1, sizeof *list);
    for (size_t i = 0; i < count; i++)
        list[i] = (struct view_pod){ .role = pods[i].role, .index = pods[i].index, .phase = pods[i].phase, .deleting = pods[i].deleting };
    return list;
}

bool observe_weighty(const struct job_status *stored, const struct job_status *now)
{
    if (stored->phase != now->phase || stored->attempt != now->attempt || stored->round != now->round ||
        stored->restarts != now->restarts || stored->disruptions != now->disruptions || stored->failure_count != now->failure_count ||
        stored->next_restart_ms != now->next_restart_ms || stored->completion_ms != now->completion_ms ||
        stored->checkpoint.step != now->checkpoint.step || stored->ring.formed_ms != now->ring.formed_ms)
        return true;
    for (int i = 0; i < CONDITION_COUNT; i++)
        if (stored->conditions[i].present != now->conditions[i].present || stored->conditions[i].is_true != now->conditions[i].is_true)
            return true;
    for (int i = 0; i < ROLE_COUNT; i++)
        if (memcmp(&stored->roles[i], &now->roles[i], sizeof now->roles[i]) != 0)
            return true;
    return false;
}
