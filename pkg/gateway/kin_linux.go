package gateway

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// kin is a process's parent and session (proc(5), /proc/PID/stat). The program's
// name stands in parentheses and may hold anything, so the fields are counted
// from the last one.
func kin(pid int) (parent, session int, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("read the parent of process %d: the line is short", pid)
	}
	if parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return 0, 0, err
	}
	session, err = strconv.Atoi(string(fields[3]))
	return parent, session, err
}
