package testscript_test

import (
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdGone: gone GLOB. With -for 0s it must be so now.
func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	bound, args := boundOf(ts, args)
	usage(ts, !neg && len(args) == 1, "gone [-for DURATION] GLOB")
	var pids []int
	var files []string
	if !eventually(bound, func() bool {
		var err error
		files, err = filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		pids = pidsOf(worldOf(ts).dir)
		return len(pids)+len(files) == 0
	}) {
		ts.Fatalf("after %s there are processes %v, files %v", bound, pids, files)
	}
}
