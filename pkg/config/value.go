package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"fleet/pkg/fault"
)

// misfit is why a value is refused, without its place, which the reader adds.
// line is 0 where the value's own line is meant.
type misfit struct {
	line    int
	message string
	hint    string
}

func (m *misfit) Error() string { return m.message }

// asMisfit keeps a fault's hint.
func asMisfit(err error) *misfit {
	if m, ok := err.(*misfit); ok {
		return m
	}
	f := fault.From(err)
	return &misfit{message: f.Message, hint: f.Hint}
}

// value is one value of the file, or of a FLEET_ variable read as one.
type value struct{ node *yaml.Node }

// word is the value as text. Any scalar will do, so that a host named 7 and a
// port of 8080 need no quotes; an absent value is refused.
func (v value) word() (string, error) {
	n := v.node
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", &misfit{message: "it is " + nounOf(n) + ", a single value is wanted"}
	case n.Tag == "!!null" && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0:
		return "", &misfit{message: "it has no value", hint: `remove the line, or write "" for an empty text`}
	case strings.ContainsRune(n.Value, 0):
		return "", &misfit{message: "it holds a NUL character"}
	}
	return n.Value, nil
}

// list is the value's elements.
func (v value) list() ([]value, error) {
	n := v.node
	if n.Kind != yaml.SequenceNode {
		return nil, &misfit{message: "it is " + nounOf(n) + ", a list is wanted", hint: "write it as [A, B], or as lines that start with a hyphen"}
	}
	items := make([]value, len(n.Content))
	for i, c := range n.Content {
		items[i] = value{c}
	}
	return items, nil
}

// words is a list of texts, each checked; an element's own line is reported.
func (v value) words(check func(string) error) ([]string, error) {
	items, err := v.list()
	if err != nil {
		return nil, err
	}
	words := make([]string, 0, len(items))
	for _, item := range items {
		w, err := item.word()
		if err == nil && check != nil {
			err = check(w)
		}
		if err != nil {
			m := *asMisfit(err)
			m.line = item.node.Line
			return nil, &m
		}
		words = append(words, w)
	}
	return words, nil
}

// nounOf names what stands where something else was wanted.
func nounOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section with keys of its own"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which is not read here"
	}
	return "a single value"
}

// form is a type of value: its name in the manual, how it is read and shown.
type form[T any] struct {
	name  string
	parse func(value) (T, error)
	show  func(T) string
}

// scalar makes the form of a value that is one word.
func scalar[T any](name string, parse func(string) (T, error), show func(T) string) form[T] {
	return form[T]{name: name, show: show, parse: func(v value) (T, error) {
		w, err := v.word()
		if err != nil {
			var none T
			return none, err
		}
		return parse(w)
	}}
}

// asIs shows a text as it is.
func asIs(s string) string { return s }

// durations are written as 500ms, 5s, 2m or 72h, and lie between least and most.
func durations(least, most time.Duration) form[time.Duration] {
	return scalar("duration", func(w string) (time.Duration, error) {
		d, err := time.ParseDuration(w)
		if err != nil {
			return 0, &misfit{message: quote(w) + " is not a duration", hint: "write it with a unit, such as 500ms, 5s, 2m or 72h"}
		}
		if d < least || d > most {
			return 0, &misfit{message: fmt.Sprintf("%s is not between %s and %s", showDuration(d), showDuration(least), showDuration(most))}
		}
		return d, nil
	}, showDuration)
}

func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// sizes are bytes, bare or as 64KiB, 16MiB or 1GiB, between least and most.
func sizes[T int | int64](least, most T) form[T] {
	return scalar("size", func(w string) (T, error) {
		digits, factor := w, int64(1)
		for _, u := range units {
			if rest, ok := strings.CutSuffix(w, u.name); ok {
				digits, factor = strings.TrimSpace(rest), u.bytes
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > int64(most)/factor || n*factor < int64(least) {
			return 0, &misfit{message: quote(w) + " is not a size between " + showSize(least) + " and " + showSize(most),
				hint: "write bytes, or a number with KiB, MiB or GiB"}
		}
		return T(n * factor), nil
	}, showSize[T])
}

func showSize[T int | int64](n T) string {
	for _, u := range units {
		if int64(n) >= u.bytes && int64(n)%u.bytes == 0 {
			return strconv.FormatInt(int64(n)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(n), 10)
}

// counts are whole numbers between least and most.
func counts[T int | int64](least, most T) form[T] {
	return scalar("number", func(w string) (T, error) {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return 0, &misfit{message: fmt.Sprintf("%s is not a whole number between %d and %d", quote(w), least, most)}
		}
		return T(n), nil
	}, func(n T) string { return strconv.FormatInt(int64(n), 10) })
}

// oneOf is a choice of words. why says, for a choice that is narrower than one
// would expect, what to do.
func oneOf[T ~string](why string, choices ...T) form[T] {
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	all := strings.Join(names, " or ")
	return scalar(all, func(w string) (T, error) {
		for _, c := range choices {
			if w == string(c) {
				return c, nil
			}
		}
		return "", &misfit{message: quote(w) + " is not " + all, hint: why}
	}, func(c T) string { return string(c) })
}

// simpleWord is text that needs no quotes in a message.
var simpleWord = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$`)

// quote shows text from the file on one line, cut to a readable length.
func quote(s string) string {
	const most = 80
	if simpleWord.MatchString(s) {
		return s
	}
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
