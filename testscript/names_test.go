package testscript_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fleet/pkg/cli"
)

// due are the requirements that have to be proved by now.
var due = []string{
	"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15", "R16", "R17", "R18", "R19", "R20",
	"R21", "R22", "R23", "R24", "R25", "R27", "R29", "R35", "R36", "R46", "R50", "R53", "R54", "R55", "R56", "R57", "R58", "R61",
}

// dueIn are requirements that need a test of their own in a folder, since other
// folders have one that proves another part.
var dueIn = map[string]string{"R61": "pkg/broker/wire"}

// cutShort are the scripts ("embedded NAME", "lavinmq NAME") that end before their
// last line on the embedded broker or under LavinMQ's answers, with the reason.
var cutShort = map[string]string{}

// number is a requirement, a case or a target of the specification in a name:
// R10a, C05, P4. A letter before it makes it part of a word.
var number = regexp.MustCompile(`(?:^|[^A-Za-z]|Test)((?:[RCP][0-9]+[a-z]?(?:[^A-Za-z0-9]*))+)(?:$|[^a-z0-9])`)

// single is one of them.
var single = regexp.MustCompile(`[RCP][0-9]+[a-z]?`)

// numbersIn lists what a name says it proves.
func numbersIn(name string) []string {
	var found []string
	for _, m := range number.FindAllStringSubmatch(name, -1) {
		found = append(found, single.FindAllString(m[1], -1)...)
	}
	return found
}

// scriptNumbers are those of a script's first line, which must be a comment.
func scriptNumbers(text string) []string {
	first, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "# ") {
		return nil
	}
	return numbersIn(first)
}

// testNumbers are those of a test file's names: of its test functions and of
// subtests. Comments don't count.
func testNumbers(f *ast.File) []string {
	var found []string
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				found = append(found, numbersIn(s)...)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && (strings.HasPrefix(n.Name.Name, "Test") || strings.HasPrefix(n.Name.Name, "Fuzz")) {
				found = append(found, numbersIn(n.Name.Name)...)
			}
		case *ast.CallExpr: // t.Run("R9 ...", ...)
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" && len(n.Args) == 2 {
				add(n.Args[0])
			}
		case *ast.KeyValueExpr: // {name: "R9 ..."} of a table
			if key, ok := n.Key.(*ast.Ident); ok && strings.EqualFold(key.Name, "name") {
				add(n.Value)
			}
		case *ast.CompositeLit: // {"R9 ...", ...} of a table
			if len(n.Elts) > 1 {
				add(n.Elts[0])
			}
		}
		return true
	})
	return found
}

// scripts reads every script of this folder.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	texts := make(map[string]string)
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(b)
	}
	return texts
}

func TestScriptsSayWhatTheyProve(t *testing.T) {
	for name, text := range scripts(t) {
		if len(scriptNumbers(text)) == 0 {
			t.Errorf("%s: its first line is no comment that names a requirement, a case or a target (R9, C05, P4)", name)
		}
	}
}

// endsEarly finds the first line that ends a script early on this broker: a skip or
// stop of which each condition either holds there or is about something else.
// Where all are about something else (an installed program, -short), it's none.
func endsEarly(text string, b broker) string {
	body, _, _ := strings.Cut(text, "\n-- ")
	for line := range strings.Lines(body) {
		rest, all, ours := strings.TrimSpace(line), true, false
		conditional := strings.HasPrefix(rest, "[")
		for strings.HasPrefix(rest, "[") {
			cond, after, _ := strings.Cut(rest[1:], "]")
			rest = strings.TrimSpace(after)
			name, negated := strings.CutPrefix(strings.TrimSpace(cond), "!")
			if holds, err := b.condition(name); err == nil {
				ours, all = true, all && holds != negated
			}
		}
		verb, _, _ := strings.Cut(rest, " ")
		if (verb == "skip" || verb == "stop") && all && (ours || !conditional) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestScriptsRunToTheirEnd wants every script to run on the embedded broker and
// under LavinMQ's answers, but for those that say why not.
func TestScriptsRunToTheirEnd(t *testing.T) {
	found := map[string]bool{}
	for _, b := range []broker{embedded, lavinmq} {
		for name, text := range scripts(t) {
			name = b.name + " " + strings.TrimSuffix(name, ".txtar")
			line := endsEarly(text, b)
			if line != "" && cutShort[name] == "" {
				t.Errorf("%s: it ends at %q, and cutShort has no reason for that", name, line)
			}
			found[name] = line != ""
		}
	}
	for name := range cutShort {
		if !found[name] {
			t.Errorf("cutShort names %s, which runs to its end", name)
		}
	}
}

func TestEndsEarlyBites(t *testing.T) {
	for _, c := range []struct {
		line              string
		embedded, lavinmq bool
	}{
		{"skip 'not today'", true, true},
		{"stop", true, true},
		{"[broker:embedded] skip", true, false},
		{"[!broker:rabbitmq] skip", true, true},
		{"[broker:rabbitmq] [short] stop", false, false},
		{"[broker:lavinmq] [short] stop", false, true},
		{"[!exec:tmux] skip", false, false},
		{"[!node] skip", false, false},
		{"# skip", false, false},
		{"exec true\n-- file --\nskip", false, false},
	} {
		text := "# R1\n" + c.line + "\n"
		if a, b := endsEarly(text, embedded) != "", endsEarly(text, lavinmq) != ""; a != c.embedded || b != c.lavinmq {
			t.Errorf("%q: embedded %t, lavinmq %t, want %t, %t", c.line, a, b, c.embedded, c.lavinmq)
		}
	}
}

// TestDueRequirements wants a test for every requirement that is due.
func TestDueRequirements(t *testing.T) {
	named := map[string]bool{}
	for _, text := range scripts(t) {
		for _, n := range scriptNumbers(text) {
			named[n] = true
		}
	}
	err := filepath.WalkDir("..", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "names_test.go" {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		for _, n := range testNumbers(f) {
			named[n] = true
			named[n+" "+filepath.ToSlash(filepath.Dir(name))] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range due {
		t.Run(n, func(t *testing.T) {
			if !named[n] {
				t.Errorf("no test and no script names %s", n)
			}
			if dir := dueIn[n]; dir != "" && !named[n+" ../"+dir] {
				t.Errorf("no test in %s names %s", dir, n)
			}
		})
	}
}

func TestNamesBite(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"TestR9_ReturnBeforeConfirm", []string{"R9"}},
		{"TestR10aUnknownIsLoud", []string{"R10a"}},
		{"TestR10about", nil},
		{"TestR10a_UnknownIsLoud", []string{"R10a"}},
		{"TestR9R14_Reconnect", []string{"R9", "R14"}},
		{"TestC05_DeletedQueue", []string{"C05"}},
		{"R9 a return comes first, R12: no broker (C13, P4)", []string{"R9", "R12", "C13", "P4"}},
		{"TestUTF8", nil},
		{"TestCRC32", nil},
		{"a MISFIR9 word", nil},
	} {
		if got := numbersIn(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q names %v, want %v", c.text, got, c.want)
		}
	}
	for text, want := range map[string]int{
		"# Local send (R12, R23).\nhost a": 2, "# Nothing.\n# R9": 0, "host a # R9": 0, "": 0,
	} {
		if got := scriptNumbers(text); len(got) != want {
			t.Errorf("%q names %v, want %d", text, got, want)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "a_test.go", `package a
// TestR1 is only mentioned, as R2 is here.
func TestR3_x(t *testing.T) {
	// R4
	t.Run("R5 sub", nil)
	for _, c := range []struct{ name string; n int }{{name: "R6 row"}, {"R7 row", 1}} { t.Run(c.name, nil) }
	t.Log("R8", "R9")
}
func helperR10() {}
`, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	got := testNumbers(f)
	slices.Sort(got)
	if want := []string{"R3", "R5", "R6", "R7"}; !slices.Equal(got, want) {
		t.Errorf("names of the planted file: %v, want %v", got, want)
	}
}

// TestEveryCommandIsRun wants every leaf command to be run by some script.
func TestEveryCommandIsRun(t *testing.T) {
	texts := scripts(t)
	for _, leaf := range cli.Leaves() {
		leaf = strings.TrimPrefix(leaf, "fleet ")
		t.Run(leaf, func(t *testing.T) {
			for _, text := range texts {
				if ranBy(text, leaf) {
					return
				}
			}
			t.Errorf("no script runs fleet %s", leaf)
		})
	}
}

// ranBy says whether a script runs `fleet WORDS`, flags of fleet's own between.
func ranBy(text, words string) bool {
	pattern := `(^|\s)fleet(\s+-\S+(\s+[^-\s]\S*)?)*\s+` + strings.ReplaceAll(regexp.QuoteMeta(words), " ", `\s+`) + `(\s|$)`
	re := regexp.MustCompile(pattern)
	body, _, _ := strings.Cut(text, "\n-- ")
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") && re.MatchString(line) {
			return true
		}
	}
	return false
}

func TestEveryCommandBites(t *testing.T) {
	for _, c := range []struct {
		line string
		want bool
	}{
		{"fleet key show", true},
		{"status 0 fleet key show", true},
		{"awaitcmd x fleet  key  show --json", true},
		{"fleet --json key show", true},
		{"fleet --dir $D/a key show", true},
		{"# fleet key show", false},
		{"fleet key rotate", false},
		{"fleet key shows", false},
		{"-- x --\nfleet key show", false},
	} {
		if got := ranBy("# R1\n"+c.line+"\n", "key show"); got != c.want {
			t.Errorf("%q: %t, want %t", c.line, got, c.want)
		}
	}
}
