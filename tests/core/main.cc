// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
