/*
 * analyzer.h — what clang-tidy cannot see across files: the functions that set an error return -1. Put in front of every
 * file by `make lint` (not of base/error.c, which defines them); no program is built with it.
 */
#ifndef TOOLS_ANALYZER_H
#define TOOLS_ANALYZER_H

#include "base/error.h"

#define error_set(...) ((void)error_set(__VA_ARGS__), -1)
#define error_errno(...) ((void)error_errno(__VA_ARGS__), -1)
#define error_wrap(...) ((void)error_wrap(__VA_ARGS__), -1)

#endif
