package config

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"fleet/pkg/identity"
)

// page is a YAML text that is edited by lines: the node tree says where things
// stand, and what is not touched stays byte for byte. Encoding the tree anew
// would lose blank lines and the layout.
type page struct {
	lines []string // each with its line end
	eol   string
}

func newPage(text []byte) *page {
	p := &page{eol: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		p.eol = "\r\n"
	}
	for line := range strings.Lines(string(text)) {
		p.lines = append(p.lines, line)
	}
	if n := len(p.lines); n > 0 && !strings.HasSuffix(p.lines[n-1], "\n") {
		p.lines[n-1] += p.eol
	}
	return p
}

// insert puts lines before line n (from 1), each indented by indent spaces.
func (p *page) insert(n, indent int, lines ...string) {
	added := make([]string, len(lines))
	for i, l := range lines {
		added[i] = strings.Repeat(" ", indent) + l + p.eol
	}
	p.lines = append(p.lines[:n-1], append(added, p.lines[n-1:]...)...)
}

// remove takes the lines from first up to but not including end.
func (p *page) remove(first, end int) {
	p.lines = append(p.lines[:first-1], p.lines[end-1:]...)
}

// end is the line after an entry whose region ends before limit: blank lines
// and comments at the region's end are not the entry's.
func (p *page) end(limit int) int {
	for limit > 1 {
		l := strings.TrimSpace(p.lines[limit-2])
		if l != "" && l[0] != '#' {
			break
		}
		limit--
	}
	return limit
}

// entry finds a key of a block section, its value, and the line after it; limit
// is the line after the section. Where there is none the key is nil, and the
// line is where one would be added.
func (p *page) entry(section *yaml.Node, name string, limit int) (key, val *yaml.Node, end int) {
	c := section.Content
	for i := 0; i+1 < len(c); i += 2 {
		if c[i].Value != name {
			continue
		}
		if i+2 < len(c) {
			limit = c[i+2].Line
		}
		return c[i], c[i+1], p.end(limit)
	}
	return nil, nil, p.end(limit)
}

// swap replaces a flow value, "[...]" or "{...}", or a written null. It reports
// false where the value holds a comment, which would be lost, or does not end.
func (p *page) swap(n *yaml.Node, with string) bool {
	if n.Line < 1 || n.Line > len(p.lines) {
		return false
	}
	start := 0
	for range n.Column - 1 {
		_, size := utf8.DecodeRuneInString(p.lines[n.Line-1][start:])
		start += size
	}
	if n.Kind == yaml.ScalarNode {
		l := p.lines[n.Line-1]
		rest, ok := strings.CutPrefix(l[start:], n.Value)
		p.lines[n.Line-1] = l[:start] + with + rest
		return ok
	}
	rest := strings.Join(p.lines[n.Line-1:], "")
	length := flowLength(rest[start:])
	if length < 0 {
		return false
	}
	text := rest[:start] + with + rest[start+length:]
	p.lines = p.lines[:n.Line-1]
	for line := range strings.Lines(text) {
		p.lines = append(p.lines, line)
	}
	return true
}

// clear takes away a written null or {}, so that a block may follow.
func (p *page) clear(n *yaml.Node) bool {
	ok := p.swap(n, "")
	if ok {
		p.lines[n.Line-1] = strings.TrimRight(p.lines[n.Line-1], " \r\n") + p.eol
	}
	return ok
}

// flowLength is how long the bracketed value at the start of s is; -1 where it
// does not end, or a comment may be in it.
func flowLength(s string) int {
	depth, quote := 0, byte(0)
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#':
			return -1
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// isFlow says whether a value is written in brackets.
func isFlow(n *yaml.Node) bool { return n.Style&yaml.FlowStyle != 0 }

// isEmpty says whether a section is null, written or not, or {}.
func isEmpty(n *yaml.Node) bool { return n.Tag == "!!null" || isFlow(n) && len(n.Content) == 0 }

// setPeer is text with host's keys as given; none removes the peer. It reports
// false for a layout that it can't edit; its caller also verifies the result.
func setPeer(text []byte, host identity.Host, keys []identity.PublicKey) ([]byte, bool) {
	words := make([]string, len(keys))
	for i, k := range keys {
		words[i] = k.String()
	}
	root, err := parse(text)
	if err != nil || root != nil && isFlow(root) {
		return nil, false
	}
	if root == nil {
		root = &yaml.Node{Kind: yaml.MappingNode, Column: 1}
	}
	p := newPage(text)
	ok := p.setInRoot(root, string(host), words)
	return []byte(strings.Join(p.lines, "")), ok
}

func (p *page) setInRoot(root *yaml.Node, name string, words []string) bool {
	indent, limit := root.Column-1, len(p.lines)+1
	key, peers, end := p.entry(root, "peers", limit)
	switch {
	case key == nil:
		p.insert(limit, indent, "peers:", "  "+name+":", "    "+keysLine(words))
	case isEmpty(peers):
		ok := p.clear(peers)
		p.insert(key.Line+1, indent, "  "+name+":", "    "+keysLine(words))
		return ok
	case isFlow(peers):
		return p.swap(peers, flowPeers(peers, name, words))
	default:
		return p.setInPeers(peers, end, name, words)
	}
	return true
}

func (p *page) setInPeers(peers *yaml.Node, limit int, name string, words []string) bool {
	key, peer, end := p.entry(peers, name, limit)
	indent := peers.Column - 1
	switch {
	case key == nil:
		p.insert(end, indent, name+":", "  "+keysLine(words))
	case len(words) == 0:
		p.remove(key.Line, end)
	case isEmpty(peer):
		ok := p.clear(peer)
		p.insert(key.Line+1, indent, "  "+keysLine(words))
		return ok
	case isFlow(peer):
		return p.swap(peer, "{"+keysLine(words)+"}")
	default:
		return p.setInPeer(peer, end, words)
	}
	return true
}

func (p *page) setInPeer(peer *yaml.Node, limit int, words []string) bool {
	_, list, end := p.entry(peer, "keys", limit)
	switch {
	case list == nil || list.Kind != yaml.SequenceNode:
		return false
	case isFlow(list):
		return p.swap(list, flowList(words))
	}
	var present []string
	for i := len(list.Content) - 1; i >= 0; i-- {
		item := list.Content[i]
		present = append(present, item.Value)
		if !slices.Contains(words, item.Value) {
			p.remove(item.Line, item.Line+1)
			end--
		}
	}
	for _, w := range words {
		if !slices.Contains(present, w) {
			p.insert(end, list.Column-1, "- "+w)
			end++
		}
	}
	return true
}

func flowList(words []string) string { return "[" + strings.Join(words, ", ") + "]" }

func keysLine(words []string) string { return "keys: " + flowList(words) }

// flowPeers writes the peers of a section in braces anew, with one changed.
func flowPeers(peers *yaml.Node, name string, words []string) string {
	var entries []string
	write := func(name string, words []string) {
		if len(words) > 0 {
			entries = append(entries, name+": {"+keysLine(words)+"}")
		}
	}
	found := false
	for i := 0; i+1 < len(peers.Content); i += 2 {
		other, theirs := peers.Content[i].Value, []string(nil)
		for _, field := range peers.Content[i+1].Content {
			for _, item := range field.Content {
				theirs = append(theirs, item.Value)
			}
		}
		if other == name {
			found, theirs = true, words
		}
		write(other, theirs)
	}
	if !found {
		write(name, words)
	}
	return "{" + strings.Join(entries, ", ") + "}"
}
