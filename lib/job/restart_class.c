#include "job/restart_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* What the system does to a pod without the user's program having a part in it. Kubernetes: pod reasons and the reasons
 * of the condition DisruptionTarget (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/); the last group
 * is ours. */
static const char *const INFRASTRUCTURE_REASONS[] = {
    "Evicted", "EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet",
    "Preempted", "Preempting", "PreemptionByScheduler", "PreemptionByKubeScheduler",
    "NodeLost", "NodeNotReady", "NodeShutdown", "Shutdown", "Terminated", "ContainerStatusUnknown",
    "UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage",
    "PodDeleted", "PodLost", "SidecarLost", "MemberLost", "LauncherLost", "RingLost", "ScheduleTimeout",
};

/* Why a container cannot start: waiting reasons of the kubelet, and ours when it did not start in time. */
static const char *const START_REASONS[] = {
    "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartTimeout",
};

/* Errors of NVIDIA's driver that only another card or a reset of the node cures
 * (https://docs.nvidia.com/deploy/xid-errors/): memory, NVLink, the bus, the GPU's own processor. */
static const long BROKEN_XIDS[] = { 48, 63, 64, 74, 79, 92, 94, 95, 119, 120 };

static const char *const BROKEN_WORDS[] = {
    "uncorrectable ECC error", "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "GPU has fallen off the bus",
};

bool restart_is_one_of(const char *text, const char *const *list, size_t count)
{
    for (size_t i = 0; text != NULL && i < count; i++) {
        if (strcmp(text, list[i]) == 0)
            return true;
    }
    return false;
}

bool restart_has_condition(const struct failure_event *event, const char *type, const char *status)
{
    for (size_t i = 0; i < event->condition_count; i++) {
        if (strcmp(event->condition_types[i], type) == 0 && strcmp(event->condition_statuses[i], status) == 0)
            return true;
    }
    return false;
}

bool restart_is_start_problem(const struct failure_event *event)
{
    return !event->has_exit && restart_is_one_of(event->reason, START_REASONS, COUNT(START_REASONS));
}

bool restart_blames_hardware(const char *message)
{
    for (size_t i = 0; message != NULL && i < COUNT(BROKEN_WORDS); i++) {
        if (strstr(message, BROKEN_WORDS[i]) != NULL)
            return true;
    }
    for (const char *p = message; p != NULL && (p = strstr(p, "Xid (")) != NULL; p++) {
        const char *number = strstr(p, "): ");
        long xid = number != NULL ? strtol(number + 3, NULL, 10) : 0;
        for (size_t i = 0; i < COUNT(BROKEN_XIDS); i++) {
            if (xid == BROKEN_XIDS[i])
                return true;
        }
    }
    return false;
}

enum failure_class restart_classify(const struct failure_event *event)
{
    const char *reason = event->reason != NULL ? event->reason : "";

    if (strcmp(reason, "OOMKilled") == 0)
        return FAILURE_OOM;
    if (strcmp(reason, "Hang") == 0)
        return FAILURE_HANG;
    if (restart_is_one_of(reason, INFRASTRUCTURE_REASONS, COUNT(INFRASTRUCTURE_REASONS)) ||
        restart_has_condition(event, "DisruptionTarget", "True"))
        return FAILURE_INFRASTRUCTURE;
    if (!event->has_exit)
        return restart_is_start_problem(event) ? FAILURE_USER : FAILURE_INFRASTRUCTURE; /* nobody saw it end: it was lost */
    if (event->exit_code == 247)
        return FAILURE_OOM; /* -9 as some runtimes write a kill by the memory controller */
    if (event->exit_code == 14 || event->exit_code == 201 || event->exit_code == 202)
        return FAILURE_HARDWARE; /* infoROM corrupted, GPU driver error, GPU residue: DLRover's codes */
    if (event->exit_code != 0 && restart_blames_hardware(event->message))
        return FAILURE_HARDWARE;
    return FAILURE_USER;
}

/* ---- how often --------------------------------------------------------------------------------------------------- */

static const struct restart_tries NEVER_STARTED = { 0, 0, "a command that cannot be run is not tried again" };
static const struct restart_tries OOM_TRIES = { 1, 0, "it ran out of memory again right after a restart" };
static const struct restart_tries HANG_TRIES = { 1, TRIES_UNLIMITED, NULL };
static const struct restart_tries ANY = { TRIES_UNLIMITED, 0, NULL };

static const struct { int32_t code; struct restart_tries tries; } CODE_TRIES[] = {
    { 93, { 0, 0, "code 93 asks not to be started again" } }, /* NVIDIA's resiliency extension */
    { 132, { 1, 0, "an illegal instruction comes again wherever the program runs" } },
    { 134, { 1, TRIES_UNLIMITED, NULL } },
    { 135, { 1, 0, "a bus error comes again while a file in memory is larger than its file system" } },
    { 139, { 1, 1, "it crashed on another node, too" } },
    { 152, { 0, 0, "its limit of CPU time (ulimit -t) is reached again" } },
    { 153, { 0, 0, "its limit of file size (ulimit -f) is reached again" } },
};

static bool was_not_started(const struct failure_event *event)
{
    static const char *const reasons[] = { "CommandNotFound", "CommandNotExecutable" };

    return restart_is_one_of(event->reason, reasons, COUNT(reasons));
}

const struct restart_tries *restart_tries_of(const struct failure_event *event, enum failure_class class)
{
    if (class == FAILURE_OOM)
        return &OOM_TRIES;
    if (class == FAILURE_HANG)
        return &HANG_TRIES;
    if (class != FAILURE_USER || !event->has_exit)
        return &ANY;
    if (was_not_started(event))
        return &NEVER_STARTED;
    for (size_t i = 0; i < COUNT(CODE_TRIES); i++) {
        if (CODE_TRIES[i].code == event->exit_code)
            return &CODE_TRIES[i].tries;
    }
    return &ANY;
}

int32_t restart_end_of(const struct failure_event *event, enum failure_class class)
{
    int32_t how = class == FAILURE_HANG ? 256 : class == FAILURE_OOM ? 257 : event->has_exit ? event->exit_code & 255 : 258;

    return (((int32_t)event->role << 14 | (event->index & 0x3fff)) << 9 | how) + 1;
}
