package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"fleet/pkg/fault"
	"fleet/pkg/identity"
)

const (
	// mostBytes bounds fleet.yaml: a thousand peers need a tenth of it.
	mostBytes = 1 << 20
	// mostProblems is how many faults one reading reports.
	mostProblems = 20
)

// branch is a node of the schema: a section, a section of named parts, or a key.
type branch struct {
	key      *Key
	children map[string]*branch
	order    []string // of children, as in the table
	named    *branch  // what stands under each name that the user chose
	part     part
}

// part is a kind of thing that the user names.
type part struct {
	noun  string
	check func(string) error
	open  func(d *draft, name string)
}

// parts are the placeholders in key paths.
var parts = map[string]part{
	"HOST": {"peer",
		func(s string) error { _, err := identity.ParseHost(s); return err },
		func(d *draft, name string) { d.peer(name) }},
	"PROFILE": {"profile", identity.CheckName, func(d *draft, name string) { d.profile(name) }},
}

// schema is the table as a tree.
var schema = func() *branch {
	root := &branch{}
	for i := range keys {
		at := root
		for _, segment := range strings.Split(keys[i].Path, ".") {
			if p, ok := parts[segment]; ok {
				if at.named == nil {
					at.named, at.part = &branch{}, p
				}
				at = at.named
				continue
			}
			if at.children[segment] == nil {
				if at.children == nil {
					at.children = map[string]*branch{}
				}
				at.children[segment] = &branch{}
				at.order = append(at.order, segment)
			}
			at = at.children[segment]
		}
		at.key = &keys[i]
	}
	return root
}()

// reader fills a draft and collects what is wrong, so that a person can mend
// everything at once.
type reader struct {
	draft    *draft
	problems []problem
	failed   map[string]bool // key paths whose value was refused
}

func newReader(dir string) *reader {
	return &reader{draft: newDraft(dir), failed: map[string]bool{}}
}

type problem struct{ place, message, hint string }

// complain records a problem at a place ("file:line", or a variable).
func (r *reader) complain(place, message, hint string) {
	p := problem{place, message, hint}
	if len(r.problems) < mostProblems && !slices.Contains(r.problems, p) {
		r.problems = append(r.problems, p)
	}
}

// fault is everything that is wrong, nil for nothing.
func (r *reader) fault() error {
	if len(r.problems) == 0 {
		return nil
	}
	first := r.problems[0]
	f := fault.New(fault.Config, "%s: %s", first.place, first.message)
	if first.hint != "" {
		f = f.WithHint("%s", first.hint)
	}
	for _, p := range r.problems[1:] {
		line := p.place + ": " + p.message
		if p.hint != "" {
			line += " (" + p.hint + ")"
		}
		f = f.WithAlso(line)
	}
	return f
}

// line is a place in the file.
func (r *reader) line(n int) string { return r.draft.File + ":" + strconv.Itoa(n) }

// file reads the text of fleet.yaml into the draft.
func (r *reader) file(text []byte) {
	root, err := parse(text)
	if err != nil {
		m := asMisfit(err)
		r.complain(r.line(m.line), m.message, m.hint)
		return
	}
	if root != nil {
		r.section(root, schema, "", "")
	}
}

// parse is the root node of text: nil where there is none.
func parse(text []byte) (*yaml.Node, error) {
	if len(text) > mostBytes {
		return nil, &misfit{line: 1, message: fmt.Sprintf("it has more than %s", showSize(mostBytes))}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = decoder.Decode(&second); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			return nil, &misfit{line: max(second.Line, 1), message: "a second document starts here, one is read"}
		}
	}
	if err != nil {
		return nil, &misfit{line: brokenLine(text, err), message: "it is not YAML: " + saying.ReplaceAllString(err.Error(), "")}
	}
	if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return nil, nil
	}
	return document.Content[0], nil
}

// saying is how the YAML package starts its errors.
var saying = regexp.MustCompile(`^yaml: (line (\d+): )?`)

// brokenLine is where text stops being YAML: the line after the longest run of
// whole lines that parses. The package's own figure is where the surrounding
// block starts, one too low, or missing.
func brokenLine(text []byte, err error) int {
	own, _ := strconv.Atoi(saying.FindStringSubmatch(err.Error() + " ")[2])
	lines := bytes.SplitAfter(text, []byte("\n"))
	const worth = 32 << 10 // the search below is quadratic
	if len(text) > worth || len(lines) > 500 {
		return max(own, 1)
	}
	for n, end := len(lines)-1, len(text); n > 0; n-- {
		end -= len(lines[n])
		var node yaml.Node
		if yaml.Unmarshal(text[:end], &node) == nil {
			return n + 1
		}
	}
	return 1
}

// pair is one key of a section.
type pair struct {
	name  string
	line  int
	value value
}

// pairs are the keys of a section, in order; a key that is there twice is
// refused, because one of the two would be lost.
func (v value) pairs() ([]pair, error) {
	n := v.node
	if n.Kind != yaml.MappingNode {
		return nil, &misfit{message: "it is " + nounOf(n) + ", a section with keys of its own is wanted"}
	}
	first := map[string]int{}
	pairs := make([]pair, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			return nil, &misfit{line: k.Line, message: "a key is " + nounOf(k) + ", a word is wanted"}
		}
		if line, twice := first[k.Value]; twice {
			return nil, &misfit{line: k.Line, message: fmt.Sprintf("%s is there twice, first in line %d", quote(k.Value), line)}
		}
		first[k.Value] = k.Line
		pairs = append(pairs, pair{k.Value, k.Line, value{n.Content[i+1]}})
	}
	return pairs, nil
}

// section reads the keys under path; name is the part of the user's that they
// belong to. Its depth is the schema's.
func (r *reader) section(n *yaml.Node, b *branch, path, name string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // "peers:" with nothing below it
	}
	pairs, err := value{n}.pairs()
	if err != nil {
		m := asMisfit(err)
		r.complain(r.line(cmp.Or(m.line, n.Line)), prefixed(path, m.message), m.hint)
		return
	}
	for _, p := range pairs {
		child, below, part := b.named, join(path, p.name), name
		if b.named == nil {
			child = b.children[p.name]
		} else if err := b.part.check(p.name); err != nil {
			f := fault.From(err)
			r.complain(r.line(p.line), f.Message, f.Hint)
			continue
		} else {
			part = p.name
			b.part.open(r.draft, part)
		}
		switch {
		case child == nil:
			message, hint := unknown(p.name, path, b)
			r.complain(r.line(p.line), message, hint)
		case child.key != nil:
			r.set(child.key, below, part, p.value, r.line(p.line), r.line)
		default:
			r.draft.sources[below] = r.line(p.line)
			r.section(p.value.node, child, below, part)
		}
	}
}

// set gives one key its value and notes where it came from. line makes a place
// of a line inside the value.
func (r *reader) set(k *Key, path, name string, v value, place string, line func(int) string) {
	if err := k.set(r.draft, name, v); err != nil {
		m := asMisfit(err)
		if m.line > 0 {
			place = line(m.line)
		}
		r.failed[path] = true
		r.complain(place, prefixed(path, m.message), m.hint)
		return
	}
	r.draft.sources[path] = place
}

// prefixed names the key that a sentence is about.
func prefixed(path, message string) string {
	if path == "" {
		return message
	}
	return path + ": " + message
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
