// Package pkg_test holds the rules of the house that a machine can check: who
// may import whom, which package alone may name a thing, how packages and
// scripts introduce themselves, what stands where.
//
// It parses the sources itself, so that no build cache hides a violation, and
// knows nothing of what the code does. For each rule a planted violation proves
// that it bites.
package pkg_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the import path of the repository's root.
const module = "fleet"

// layers are the rooms from the bottom up. A room may import those below its own
// layer, and none beside or above it.
var layers = [][]string{
	{"pkg/fault"},
	{"pkg/identity"},
	{"pkg/envelope", "pkg/topology"},
	{"pkg/config"}, // its values have the types of those two
	{"pkg/pane"},
	{"pkg/api"},
	{"pkg/broker/login", "pkg/broker/store", "pkg/broker/wire"},
	{"pkg/broker", "pkg/bus", "pkg/client", "pkg/localapi", "pkg/mailbox", "pkg/output", "pkg/pane/pty", "pkg/pane/tmux",
		"pkg/pane/herdr", "pkg/roster", "pkg/trace", "pkg/turn", "pkg/worktree"},
	{"pkg/dlq", "pkg/embedded", "pkg/inject"},
	{"pkg/demo", "pkg/gateway", "pkg/mcp"},
	{"pkg/cli"},
	{"cmd/fleet", "testscript", "pkg"},
}

// testRooms are support for tests: only tests import them, and they import no
// other room.
var testRooms = []string{"pkg/bus/proxy", "pkg/powercut"}

// daemonHalf are the rooms that only the listed files of cli may name: the
// commands that are the daemon or look after what it keeps.
var (
	daemonHalf = []string{"pkg/broker", "pkg/broker/login", "pkg/bus", "pkg/dlq", "pkg/embedded", "pkg/gateway", "pkg/inject", "pkg/localapi", "pkg/mailbox", "pkg/pane",
		"pkg/pane/pty", "pkg/pane/tmux", "pkg/pane/herdr", "pkg/roster", "pkg/turn", "pkg/worktree"}
	daemonFiles = []string{"gateway.go", "hold.go", "broker.go", "dlq.go", "doctor.go", "demo.go"}
)

// homes are modules with the rooms that alone may import them; testHomes may too,
// in their tests.
var homes = []struct {
	module           string
	rooms, testHomes []string
}{
	{"github.com/rabbitmq/amqp091-go", []string{"pkg/bus", "pkg/bus/proxy"}, []string{"pkg/broker", "pkg/embedded", "testscript"}},
	{"github.com/prometheus/client_golang", []string{"pkg/broker", "pkg/embedded"}, nil},
	{"github.com/spf13/cobra", []string{"pkg/cli"}, nil},
	{"github.com/spf13/pflag", []string{"pkg/cli"}, nil},
	{"github.com/olekukonko/tablewriter", []string{"pkg/output"}, nil},
	{"github.com/mattn/go-isatty", []string{"pkg/output"}, nil},
	{"go.yaml.in/yaml", []string{"pkg/config"}, nil},
	{"go.etcd.io/bbolt", []string{"pkg/mailbox"}, nil},
	{"github.com/modelcontextprotocol/go-sdk", []string{"pkg/mcp"}, []string{"testscript"}},
	{"github.com/rogpeppe/go-internal", []string{"testscript"}, nil},
	// Published vectors are checked by the standard library, beside our own code.
	{"crypto/ed25519", []string{"pkg/identity"}, []string{"pkg/envelope"}},
}

// words are things of the standard library that only some places may name. Tests
// may name them all.
var words = []struct {
	pkg   string
	names []string
	in    []string // rooms or files
}{
	{"os", []string{"Exit"}, []string{"cmd/fleet/main.go"}},
	{"log", []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}, nil},
	{"os", []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv"}, []string{"pkg/config", "pkg/cli", "pkg/powercut"}},
	{"syscall", []string{"Exit", "Getenv", "Environ"}, nil},
	{"os", []string{"Stdin", "Stdout", "Stderr"}, []string{"pkg/cli", "pkg/mcp", "cmd/fleet/main.go"}},
	{"fmt", []string{"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"}, nil},
}

// noRooms are names that say nothing of what a package owns.
var noRooms = []string{"util", "utils", "common", "helper", "helpers", "types", "model", "models", "manager", "service", "core", "misc", "shared"}

// topLevel is what stands at the repository's root, beside dot files.
var topLevel = []string{"cmd", "pkg", "completions", "man", "testscript", "go.mod", "go.sum", "goreleaser.yaml", "README.md", "LICENSE"}

// mostLines is the length at which a file says more than one thing.
const mostLines = 500

// source is one Go file. path is relative to the root, with slashes.
type source struct {
	path  string
	file  *ast.File
	lines int
}

func (s source) room() string { return path.Dir(s.path) }
func (s source) test() bool   { return strings.HasSuffix(s.path, "_test.go") }

func parse(name, text string) (source, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parse: %w", err)
	}
	return source{name, f, strings.Count(text, "\n")}, nil
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

func layerOf(room string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, room) })
}

// wrongImports finds imports of rooms that are not below.
func wrongImports(s source) []string {
	var wrong []string
	from, fromTestRoom := layerOf(s.room()), slices.Contains(testRooms, s.room())
	if from < 0 && !fromTestRoom {
		wrong = append(wrong, "the room "+s.room()+" is in no layer; give it one in house_test.go")
	}
	for _, p := range s.imports() {
		room, ours := strings.CutPrefix(p, module+"/")
		if !ours || room == s.room() { // a package's outside tests import it
			continue
		}
		switch to := layerOf(room); {
		case slices.Contains(testRooms, room):
			if !s.test() {
				wrong = append(wrong, "imports "+room+", which is for tests")
			}
		case fromTestRoom:
			wrong = append(wrong, "imports "+room+", but support for tests imports no room")
		case to < 0:
			wrong = append(wrong, "imports "+room+", which is in no layer")
		case to == from:
			wrong = append(wrong, "imports "+room+", which is beside it")
		case to > from && from >= 0:
			wrong = append(wrong, "imports "+room+", which is above it")
		}
		if s.room() == "pkg/cli" && !s.test() && slices.Contains(daemonHalf, room) && !slices.Contains(daemonFiles, path.Base(s.path)) {
			wrong = append(wrong, "imports "+room+", the daemon's half; only "+strings.Join(daemonFiles, ", ")+" may")
		}
	}
	return wrong
}

// wrongHomes finds modules imported outside their homes.
func wrongHomes(s source) []string {
	var wrong []string
	for _, p := range s.imports() {
		for _, h := range homes {
			if p != h.module && !strings.HasPrefix(p, h.module+"/") {
				continue
			}
			if !slices.Contains(h.rooms, s.room()) && !(s.test() && slices.Contains(h.testHomes, s.room())) {
				wrong = append(wrong, fmt.Sprintf("imports %s, which belongs to %s", p, strings.Join(h.rooms, ", ")))
			}
		}
	}
	return wrong
}

// wrongWords finds things of the standard library named outside their places.
func wrongWords(s source) []string {
	if s.test() {
		return nil
	}
	var wrong []string
	local := map[string]string{} // the name a package has in this file, to its path
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			wrong = append(wrong, "imports "+p+" into its own names")
		}
		local[name] = p
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, w := range words {
			if local[x.Name] == w.pkg && slices.Contains(w.names, sel.Sel.Name) &&
				!slices.Contains(w.in, s.room()) && !slices.Contains(w.in, s.path) {
				wrong = append(wrong, "names "+w.pkg+"."+sel.Sel.Name+"; "+places(w.in))
			}
		}
		return true
	})
	return wrong
}

func places(in []string) string {
	if len(in) == 0 {
		return "nobody may"
	}
	return "only " + strings.Join(in, ", ") + " may"
}

// wrongSize finds files that are too long.
func wrongSize(s source) []string {
	if s.lines > mostLines {
		return []string{fmt.Sprintf("has %d lines, more than %d: say one thing a file", s.lines, mostLines)}
	}
	return nil
}

// wrongName finds rooms whose name says nothing.
func wrongName(s source) []string {
	for _, part := range strings.Split(s.room(), "/") {
		if slices.Contains(noRooms, part) {
			return []string{"stands in a room named " + part + ", which says nothing of what it owns"}
		}
	}
	return nil
}

// fileRules look at one file at a time.
var fileRules = map[string]func(source) []string{
	"layers": wrongImports, "homes": wrongHomes, "words": wrongWords, "size": wrongSize, "names": wrongName,
}

// wrongComments finds packages that do not introduce themselves.
func wrongComments(all []source) []string {
	type intro struct{ name, text string }
	packages := map[string]intro{}
	for _, s := range all {
		room := s.room()
		if s.test() {
			room += " (tests)"
			if !onlyTests(all, s.room()) {
				continue
			}
		}
		in := packages[room]
		in.name = s.file.Name.Name
		if s.file.Doc != nil {
			in.text = s.file.Doc.Text()
		}
		packages[room] = in
	}
	var wrong []string
	for _, room := range slices.Sorted(maps.Keys(packages)) {
		in := packages[room]
		want := "Package " + in.name + " "
		if in.name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(in.text, want) {
			wrong = append(wrong, fmt.Sprintf("%s: no file has a package comment that starts with %q", room, want))
		}
	}
	return wrong
}

// onlyTests says whether a room holds nothing else.
func onlyTests(all []source, room string) bool {
	return !slices.ContainsFunc(all, func(s source) bool { return s.room() == room && !s.test() })
}

// wrongTop finds what does not belong at the root.
func wrongTop(names []string) []string {
	var wrong []string
	for _, name := range names {
		if !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) {
			wrong = append(wrong, name+" stands at the top level")
		}
	}
	return wrong
}

// repository reads every Go file below the root.
func repository(t *testing.T) (root string, all []source) {
	t.Helper()
	root = ".."
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && name != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(relative), string(text))
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return root, all
}

func TestHouse(t *testing.T) {
	root, all := repository(t)
	if len(all) < 10 {
		t.Fatalf("only %d Go files were found", len(all))
	}
	for _, name := range slices.Sorted(maps.Keys(fileRules)) {
		t.Run(name, func(t *testing.T) {
			for _, s := range all {
				for _, w := range fileRules[name](s) {
					t.Errorf("%s %s", s.path, w)
				}
			}
		})
	}
	t.Run("comments", func(t *testing.T) {
		for _, w := range wrongComments(all) {
			t.Error(w)
		}
	})
	t.Run("top level", func(t *testing.T) {
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		for _, w := range wrongTop(names) {
			t.Error(w)
		}
	})
}

// TestHouseBites plants a violation of each rule, and its innocent twin.
func TestHouseBites(t *testing.T) {
	plant := func(name, text string) source {
		t.Helper()
		s, err := parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	long := "package bus\n" + strings.Repeat("\n", mostLines)
	for _, c := range []struct{ rule, path, text, want string }{ // no want: innocent
		{"layers", "pkg/fault/a.go", `package fault; import _ "fleet/pkg/identity"`, "above it"},
		{"layers", "pkg/fault/a_test.go", `package fault; import _ "fleet/pkg/gateway"`, "above it"},
		{"layers", "pkg/bus/a.go", `package bus; import _ "fleet/pkg/mailbox"`, "beside it"},
		{"layers", "pkg/pane/pty/a.go", `package pty; import _ "fleet/pkg/pane"`, ""},
		{"layers", "pkg/pane/a.go", `package pane; import _ "fleet/pkg/pane/pty"`, "above it"},
		{"layers", "pkg/broker/a.go", `package broker; import _ "fleet/pkg/broker/wire"`, ""},
		{"layers", "pkg/broker/wire/a.go", `package wire; import _ "fleet/pkg/broker/store"`, "beside it"},
		{"layers", "pkg/bus/a_test.go", `package bus_test; import ("fleet/pkg/bus"; _ "fleet/pkg/fault")`, ""},
		{"layers", "pkg/news/a.go", `package news`, "is in no layer"},
		{"layers", "pkg/cli/a.go", `package cli; import _ "fleet/pkg/news"`, "which is in no layer"},
		{"layers", "pkg/bus/a.go", `package bus; import _ "fleet/pkg/bus/proxy"`, "for tests"},
		{"layers", "pkg/bus/a_test.go", `package bus; import _ "fleet/pkg/bus/proxy"`, ""},
		{"layers", "pkg/bus/proxy/a.go", `package proxy; import _ "fleet/pkg/fault"`, "imports no room"},
		{"layers", "pkg/cli/send.go", `package cli; import _ "fleet/pkg/gateway"`, "daemon's half"},
		{"layers", "pkg/cli/gateway.go", `package cli; import _ "fleet/pkg/gateway"`, ""},
		{"layers", "pkg/cli/send.go", `package cli; import _ "fleet/pkg/client"`, ""},
		{"layers", "cmd/fleet/main.go", `package main; import _ "fleet/pkg/cli"`, ""},
		{"homes", "pkg/gateway/a.go", `package gateway; import _ "github.com/rabbitmq/amqp091-go"`, "belongs to pkg/bus"},
		{"homes", "pkg/bus/a.go", `package bus; import _ "github.com/rabbitmq/amqp091-go"`, ""},
		{"homes", "pkg/broker/a.go", `package broker; import _ "github.com/rabbitmq/amqp091-go"`, "belongs to pkg/bus"},
		{"homes", "pkg/broker/a_test.go", `package broker; import _ "github.com/rabbitmq/amqp091-go"`, ""},
		{"homes", "pkg/gateway/a.go", `package gateway; import _ "github.com/prometheus/client_golang/prometheus"`, "belongs to pkg/broker"},
		{"homes", "pkg/broker/a.go", `package broker; import _ "github.com/prometheus/client_golang/prometheus"`, ""},
		{"homes", "pkg/gateway/a_test.go", `package gateway; import _ "github.com/rabbitmq/amqp091-go"`, "belongs to pkg/bus"},
		{"homes", "pkg/output/a.go", `package output; import _ "github.com/spf13/cobra/doc"`, "belongs to pkg/cli"},
		{"homes", "pkg/cli/a.go", `package cli; import _ "github.com/olekukonko/tablewriter/tw"`, "belongs to pkg/output"},
		{"homes", "pkg/cli/a.go", `package cli; import _ "github.com/mattn/go-isatty"`, "belongs to pkg/output"},
		{"homes", "pkg/cli/a.go", `package cli; import _ "go.yaml.in/yaml/v3"`, "belongs to pkg/config"},
		{"homes", "pkg/turn/a.go", `package turn; import _ "go.etcd.io/bbolt"`, "belongs to pkg/mailbox"},
		{"homes", "pkg/cli/a.go", `package cli; import _ "github.com/modelcontextprotocol/go-sdk/mcp"`, "belongs to pkg/mcp"},
		{"homes", "pkg/envelope/a.go", `package envelope; import _ "crypto/ed25519"`, "belongs to pkg/identity"},
		{"words", "pkg/bus/a.go", `package bus; import "os"; func f() { os.Exit(1) }`, "os.Exit"},
		{"words", "pkg/bus/a.go", `package bus; import sys "os"; func f() { sys.Exit(1) }`, "os.Exit"},
		{"words", "pkg/bus/a.go", `package bus; import . "os"; func f() { Exit(1) }`, "into its own names"},
		{"words", "cmd/fleet/main.go", `package main; import "os"; func f() { os.Exit(1) }`, ""},
		{"words", "cmd/fleet/other.go", `package main; import "os"; func f() { os.Exit(1) }`, "os.Exit"},
		{"words", "pkg/cli/a.go", `package cli; import "log"; func f() { log.Fatal(1) }`, "log.Fatal"},
		{"words", "pkg/bus/a.go", `package bus; import "os"; var f = os.Getenv`, "os.Getenv"},
		{"words", "pkg/gateway/a.go", `package gateway; import "os"; var _, _ = os.LookupEnv("A")`, "os.LookupEnv"},
		{"words", "pkg/pane/pty/a.go", `package pty; import "os"; var e = os.Environ()`, "os.Environ"},
		{"words", "pkg/config/a.go", `package config; import "os"; var f = os.Getenv`, ""},
		{"words", "pkg/bus/a_test.go", `package bus; import "os"; var f = os.Getenv`, ""},
		{"words", "pkg/bus/a.go", `package bus; import "fmt"; func f() { fmt.Println() }`, "fmt.Println"},
		{"words", "pkg/output/a.go", `package output; import "os"; var f = os.Stdout`, "os.Stdout"},
		{"words", "pkg/bus/a.go", `package bus; var os struct{ Exit int }; var f = os.Exit`, ""},
		{"size", "pkg/bus/a.go", long, "say one thing"},
		{"size", "pkg/bus/a.go", long[:len(long)-1], ""},
		{"names", "pkg/util/a.go", `package util`, "says nothing"},
		{"names", "pkg/gateway/helpers/a.go", `package helpers`, "says nothing"},
		{"names", "pkg/bus/util.go", `package bus`, ""},
	} {
		got := strings.Join(fileRules[c.rule](plant(c.path, c.text)), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %s: %.80s\n\tgot %q, want %q", c.rule, c.path, c.text, got, c.want)
		}
	}

	bus, tests := plant("pkg/bus/b.go", "package bus"), plant("pkg/bus/b_test.go", "// Package bus tests.\npackage bus")
	for _, c := range []struct {
		files []source
		want  int
	}{
		{[]source{bus}, 1},
		{[]source{bus, tests}, 1},
		{[]source{bus, plant("pkg/bus/a.go", "// Package bus moves bytes.\npackage bus")}, 0},
		{[]source{plant("pkg/bus/a.go", "// Bytes are moved.\npackage bus")}, 1},
		{[]source{plant("pkg/bus/a.go", "// Package bus is detached.\n\npackage bus")}, 1},
		{[]source{tests}, 0},
		{[]source{plant("cmd/fleet/main.go", "// Command fleet runs.\npackage main")}, 0},
	} {
		if got := wrongComments(c.files); len(got) != c.want {
			t.Errorf("comments of %s: %v, want %d", c.files[0].path, got, c.want)
		}
	}
	if got := wrongTop([]string{".ci", "cmd", "go.mod", "docs", "main.go"}); len(got) != 2 {
		t.Errorf("top level: %v, want two", got)
	}
}
