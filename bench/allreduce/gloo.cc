// The peer Gloo, as torch.distributed uses it (gloo::allreduce over TCP): gloo RANKS BYTES... forks the ranks and prints a line of
// figures (figures.h) for each size.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "figures.h"

static int run(int rank, int size, const std::string &directory, int argc, char **argv)
{
    static double seconds[FIGURES_ITERATIONS_MAX];
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(directory);
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context->connectFullMesh(store, device);
    for (int a = 2; a < argc; a++) {
        uint64_t bytes = strtoull(argv[a], nullptr, 10);
        size_t count = bytes / sizeof(float);
        int n = figures_iterations(bytes, 500);
        std::vector<float> in(count), out(count);
        for (size_t i = 0; i < count; i++)
            in[i] = (float)(i % 1000 + rank);
        gloo::BarrierOptions barrier(context);
        gloo::barrier(barrier);
        for (int i = -n / 5 - 1; i < n; i++) {
            double began = figures_now();
            gloo::AllreduceOptions options(context);
            options.setInput(in.data(), count);
            options.setOutput(out.data(), count);
            options.setReduceFunction([](void *c, const void *x, const void *y, size_t k) { gloo::sum<float>(c, x, y, k); });
            gloo::allreduce(options);
            if (i >= 0)
                seconds[i] = figures_now() - began;
        }
        for (size_t i = 0; i < count; i++)
            if (out[i] != (float)((int)(i % 1000) * size + size * (size - 1) / 2))
                return 1;
        if (rank == 0)
            figures_print(bytes, seconds, n);
    }
    gloo::BarrierOptions last(context);
    gloo::barrier(last);
    return 0;
}

int main(int argc, char **argv)
{
    int size = atoi(argv[1]), failed = 0, status;
    char directory[] = "/tmp/gloo-XXXXXX";
    if (mkdtemp(directory) == nullptr)
        return 1;
    for (int r = 0; r < size; r++) {
        if (fork() == 0)
            _exit(run(r, size, directory, argc, argv));
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    std::string clean = std::string("rm -rf ") + directory;
    return system(clean.c_str()) != 0 || failed;
}
