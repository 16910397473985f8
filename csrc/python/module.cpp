// SPDX-License-Identifier: MIT
// s2reducer._C: what the C core tells that has nothing to do with tensors.
//
// The operators of csrc/torch are linked into the same shared object, on purpose: it holds the one
// copy of the core, so a variant forced from here holds for the operators as well.  No header of
// torch is included here; pybind11 is the copy that torch carries.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "s2.h"

namespace py = pybind11;

namespace {

using build_facts = std::map<std::string, std::string>;

build_facts build_info()
{
#if defined(__clang__)
    const std::string compiler = __VERSION__;
#elif defined(__GNUC__)
    const std::string compiler = "gcc " __VERSION__;
#else
    const std::string compiler = "unknown";
#endif
    return {
        {"version", S2_VERSION},
        {"compiler", compiler},
        {"c_standard", S2_BUILD_C_STANDARD},
        {"cxx_standard", S2_BUILD_CXX_STANDARD},
        {"torch_built_with", S2_BUILD_TORCH},
        {"torch_oldest", S2_BUILD_TORCH_OLDEST},
    };
}

// Every variant includes the ones before it, so the best one bounds those that can run.
std::vector<std::string> cpu_variants()
{
    std::vector<std::string> names;
    for (int variant = S2_PORTABLE; variant <= s2_variant_best(); variant++) {
        names.emplace_back(s2_variant_name(static_cast<s2_variant>(variant)));
    }
    return names;
}

void cpu_variant_force(const std::string &name)
{
    std::string accepted;
    int variant = S2_PORTABLE;
    for (const std::string &candidate : cpu_variants()) {
        if (candidate == name) {
            s2_variant_force(static_cast<s2_variant>(variant));
            return;
        }
        accepted += (accepted.empty() ? "" : ", ") + candidate;
        variant++;
    }
    throw py::value_error("name is '" + name + "', but the kernel variants that this machine " +
                          "can run are " + accepted);
}

} // namespace

PYBIND11_MODULE(_C, module)
{
    module.doc() = "The C core of s2reducer: its version, its build, and its kernel variants. "
                   "Importing it registers the operators torch.ops.s2reducer.*.";

    module.def(
        "version", [] { return S2_VERSION; }, "The version of the C core, such as '0.1.0'.");
    module.def("build_info", &build_info,
               "How this module was built: compiler, language standards, the torch it was built "
               "with and the oldest torch it can be loaded into.");
    module.def("cpu_variants", &cpu_variants,
               "Names of the kernel variants that this machine can run, from the narrowest.");
    module.def(
        "cpu_variant_best", [] { return s2_variant_name(s2_variant_best()); },
        "The widest kernel variant that this machine can run.");
    module.def(
        "cpu_variant_current", [] { return s2_variant_name(s2_variant_current()); },
        "The kernel variant in use: the best one, unless another was forced.");
    module.def("cpu_variant_force", &cpu_variant_force, py::arg("name"),
               "Makes all later calls in this process use the variant `name`, for tests and "
               "benchmarks. Raises ValueError where this machine cannot run it.");
}
