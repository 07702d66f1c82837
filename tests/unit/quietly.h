/*
 * quietly.h — a check for inner loops. Criterion is told of every check that holds, over a socket: a million of them are a
 * minute. This one speaks only when it fails, and ends the test then.
 */
#ifndef TESTS_UNIT_QUIETLY_H
#define TESTS_UNIT_QUIETLY_H

#include <criterion/criterion.h>

#define QUIETLY(condition, ...) do { if (!(condition)) cr_assert_fail(__VA_ARGS__); } while (0)

#endif
