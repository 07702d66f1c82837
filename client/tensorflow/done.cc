#include "done.h"

#include <functional>
#include <utility>

void *done_take(void *done)
{
    return new std::function<void()>(std::move(*static_cast<std::function<void()> *>(done)));
}

void done_run(void *taken)
{
    auto *function = static_cast<std::function<void()> *>(taken);
    (*function)();
    delete function;
}
