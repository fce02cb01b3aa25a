package testscript_test

import "github.com/rogpeppe/go-internal/testscript"

func cmdProxy(ts *testscript.TestScript, neg bool, args []string) {}
func leaves() []string                                            { return nil }
