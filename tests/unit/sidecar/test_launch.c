/* The parts of the launcher that need no process: trees, environments, counters. The rest is tests/integration/test_launcher.py. */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "sidecar/launch/descend.h"
#include "sidecar/launch/look.h"
#include "sidecar/launch/oom.h"
#include "sidecar/launch/spawn.h"

Test(launch, a_stat_line_is_read_whatever_the_name)
{
    static const struct { const char *name, *text; bool well; pid_t pid, parent; } rows[] = {
        { "plain", "12 (sh) S 7 12 12 0", true, 12, 7 },
        { "brackets and blanks", "12 (a) R 1 (b) S 7 12", true, 12, 7 },
        { "a name that looks like the rest", "12 () S 99 1) Z 7 12", true, 12, 7 },
        { "a line feed", "12 (a\nb) S 7 12", true, 12, 7 },
        { "empty", "", false, 0, 0 },
        { "no name", "12 S 7", false, 0, 0 },
        { "cut off", "12 (sh) S", false, 0, 0 },
        { "no number", "x (sh) S 7", false, 0, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        pid_t pid = 0, parent = 0;
        cr_expect_eq(descend_parse_stat(rows[i].text, &pid, &parent), rows[i].well, "case %s", rows[i].name);
        cr_expect_eq(pid, rows[i].pid, "case %s", rows[i].name);
        cr_expect_eq(parent, rows[i].parent, "case %s", rows[i].name);
    }
}

Test(launch, descendants_are_found_in_any_order)
{
    /* 10 is us: 10 → 20 → 30 → 5 (a small number: numbers wrap around), 10 → 21; 1 → 40 → 50 is another tree */
    static const pid_t pids[] = { 5, 50, 30, 1, 40, 21, 20, 10 };
    static const pid_t parents[] = { 30, 40, 20, 0, 1, 10, 10, 1 };
    static const bool expected[] = { true, false, true, false, false, true, true, false };
    bool below[COUNT(pids)];

    descend_mark(10, pids, parents, below, COUNT(pids));
    for (size_t i = 0; i < COUNT(pids); i++)
        cr_expect_eq(below[i], expected[i], "pid %d", (int)pids[i]);
    descend_mark(99, pids, parents, below, COUNT(pids));
    for (size_t i = 0; i < COUNT(pids); i++)
        cr_expect_not(below[i], "pid %d", (int)pids[i]);
}

Test(launch, cpu_time_and_state_are_read_out_of_a_stat_line)
{
    static const struct { const char *name, *text; bool well; char state; uint64_t ticks; } rows[] = {
        { "plain", "12 (sh) S 7 12 12 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 99", true, 'S', 4330 },
        { "a name with a bracket", "12 (a) R) t 7 12 12 0 -1 4194560 1 2 3 4 1 2 3 4 20 0", true, 't', 10 },
        { "cut off", "12 (sh) S 7 12 12 0 -1 4194560 1 2 3 4 10 20", false, 0, 0 },
        { "empty", "", false, 0, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char state = 0;
        uint64_t ticks = 0;
        bool well = look_parse_stat(rows[i].text, &state, &ticks);
        cr_expect_eq(well, rows[i].well, "case %s", rows[i].name);
        cr_expect(!well || (state == rows[i].state && ticks == rows[i].ticks), "case %s: %c %llu", rows[i].name, state, (unsigned long long)ticks);
    }
}

Test(launch, a_signal_is_sent_to_those_alone_that_catch_it)
{
    static const struct { const char *name, *status; int number; bool catches; } rows[] = {
        { "caught", "Name:\tx\nSigIgn:\t0000000000001000\nSigCgt:\t0002000000000002\n", 50, true },
        { "another", "Name:\tx\nSigCgt:\t0002000000000002\n", 49, false },
        { "ignored is not caught", "Name:\tx\nSigIgn:\t0002000000000000\nSigCgt:\t0000000000000000\n", 50, false },
        { "a name that says so", "Name:\tSigCgt:\t0002000000000000\nSigCgt:\t0000000000000000\n", 50, false },
        { "not there", "Name:\tx\n", 50, false },
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_eq(look_catches(rows[i].status, rows[i].number), rows[i].catches, "case %s", rows[i].name);
}

Test(launch, an_address_is_found_in_its_library)
{
    static const char maps[] = "55d0c0000000-55d0c0001000 r--p 00000000 fe:00 1   /usr/bin/python3.11\n"
                               "7f0000000000-7f0000010000 r-xp 00026000 fe:00 2   /usr/lib/x86_64-linux-gnu/libc.so.6\n"
                               "7f0000020000-7f0000030000 rw-p 00000000 00:00 0 \n"
                               "7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0   [vdso]";
    static const struct { uint64_t address; const char *place; } rows[] = {
        { 0x7f0000000123, "libc.so.6+0x26123" }, { 0x7f000000ffff, "libc.so.6+0x35fff" }, { 0x7f0000010000, "" },
        { 0x55d0c0000010, "python3.11+0x10" },   { 0x7ffd00000010, "[vdso]+0x10" },       { 0, "" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char place[160];
        look_place(maps, rows[i].address, place);
        cr_expect_str_eq(place, rows[i].place, "case %zu: %s", i, place);
    }
}

static const char *value_in(char **environment, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; environment[i] != NULL; i++) {
        if (strncmp(environment[i], name, len) == 0 && environment[i][len] == '=')
            return environment[i] + len + 1;
    }
    return NULL;
}

Test(launch, overrides_change_the_environment)
{
    static const char overrides[] = "RM_OLD=new\0RM_FRESH=1\0RM_FRESH=2\0RM_EMPTY=\0noequals\0=nameless\0RM_TWO=a=b";

    (void)setenv("RM_OLD", "old", 1);
    (void)setenv("RM_OLDER", "kept", 1);
    char **environment = spawn_environment(overrides, sizeof overrides);
    cr_expect_str_eq(value_in(environment, "RM_OLD"), "new");
    cr_expect_str_eq(value_in(environment, "RM_OLDER"), "kept");
    cr_expect_str_eq(value_in(environment, "RM_FRESH"), "2");
    cr_expect_str_eq(value_in(environment, "RM_EMPTY"), "");
    cr_expect_str_eq(value_in(environment, "RM_TWO"), "a=b");
    for (size_t i = 0; environment[i] != NULL; i++)
        cr_expect(strchr(environment[i], '=') != NULL && environment[i][0] != '=', "%s", environment[i]);
    spawn_environment_free(environment);

    environment = spawn_environment("RM_CUT=1", 5); /* not ended by NUL: not a variable */
    cr_expect_null(value_in(environment, "RM_C"));
    spawn_environment_free(environment);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    struct error e = ERROR_INIT;
    auto_free char *path = xasprintf("%s/%s", dir, name);
    auto_free char *parent = xstrdup(path);

    *strrchr(parent, '/') = '\0';
    cr_assert_eq(fs_mkdirs(parent, 0755, &e), 0, "%s", e.text);
    cr_assert_eq(fs_write_atomic(path, text, strlen(text), 0644, &e), 0, "%s", e.text);
}

Test(launch, the_oom_counter_is_found)
{
    static const struct { const char *name, *cgroup, *file, *text; int64_t count; } rows[] = {
        { "version 2", "0::/a/b\n", "a/b/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n", 2 },
        { "version 2 in a container", "0::/\n", "memory.events", "oom_kill 5\n", 5 },
        { "version 2, the host's path", "0::/kubepods/x\n", "memory.events", "oom_kill 6\n", 6 },
        { "version 1", "9:name=systemd:/\n4:cpu,memory:/k/p\n0::/\n", "memory/k/p/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7 },
        { "version 1 in a container", "4:memory:/docker/x\n", "memory/memory.oom_control", "oom_kill_disable 0\noom_kill 1\n", 1 },
        { "none", "9:name=systemd:/\n3:memorystick:/\n", "memory/memory.oom_control", "oom_kill 1\n", -1 },
        { "not readable", "0::/a\n", "other", "oom_kill 1\n", -1 },
        { "an old kernel without the counter", "4:memory:/\n", "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", -1 },
        { "rubbish", "::::\n\nabc\n0:", "x", "", -1 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char dir[] = "/tmp/rm-oom-XXXXXX";
        struct error e = ERROR_INIT;
        cr_assert_not_null(mkdtemp(dir));
        write_file(dir, "cgroup", rows[i].cgroup);
        auto_free char *mount = xasprintf("%s/mount", dir);
        auto_free char *cgroup = xasprintf("%s/cgroup", dir);
        write_file(mount, rows[i].file, rows[i].text);
        cr_expect_eq(oom_count(cgroup, mount), rows[i].count, "case %s: %lld", rows[i].name, (long long)oom_count(cgroup, mount));
        cr_expect_eq(fs_remove_tree(dir, &e), 0, "%s", e.text);
    }
    cr_expect_eq(oom_count("/no/such/file", "/no/such/mount"), -1);
}

Test(launch, codes_are_a_shells)
{
    static const struct { int status, code; } rows[] = { { 0, 0 }, { 1 << 8, 1 }, { 255 << 8, 255 }, { SIGKILL, 137 }, { SIGSEGV | 0x80, 139 }, { SIGTERM, 143 } };

    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_eq(spawn_code(rows[i].status), rows[i].code, "status %x", rows[i].status);
}
