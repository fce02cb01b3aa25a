package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// variablePrefix starts every variable of ours.
const variablePrefix = "FLEET_"

// foreign variables are ours and are no configuration keys.
func foreign(name string) bool {
	return name == "FLEET_DIR" || name == "FLEET_TOKEN" || strings.HasPrefix(name, "FLEET_TEST_")
}

// environment reads the FLEET_* variables among environ ("NAME=value") into the
// draft. A variable's name is the key's path in capitals with _ for each dot
// and hyphen: FLEET_BROKER_URL, FLEET_PEERS_BETA_KEYS. A single value is taken
// as it stands; a list or section is written as YAML, [A, B] or {A: b}, and a
// list of one element may be that element alone, an empty list nothing. A variable that looks like a
// misspelt key is a fault; others that start with FLEET_ belong to somebody
// else.
func (r *reader) environment(environ []string) {
	environ = slices.Clone(environ)
	slices.Sort(environ) // so that the first problem is the same in every run
	for _, entry := range environ {
		variable, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(variable, variablePrefix) || foreign(variable) {
			continue
		}
		k, name, err := r.keyOf(variable)
		if err != nil {
			m := asMisfit(err)
			r.complain(variable, m.message, m.hint)
			continue
		}
		if k == nil {
			continue
		}
		r.set(k, k.at(name), name, valueOf(k, text), variable, func(int) string { return variable })
	}
}

// at is the key's path with the user's name filled in.
func (k Key) at(name string) string {
	segments := strings.Split(k.Path, ".")
	for i, s := range segments {
		if _, ok := parts[s]; ok {
			segments[i] = name
		}
	}
	return strings.Join(segments, ".")
}

// valueOf reads a variable's text as a value of k. What is not the YAML of a
// list or a section is taken as one word, and k's own check judges it.
func valueOf(k *Key, text string) value {
	single := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	list := strings.HasPrefix(k.Type, "list")
	if !list && !strings.HasPrefix(k.Type, "section") {
		return value{single}
	}
	if t := strings.TrimSpace(text); strings.HasPrefix(t, "[") || strings.HasPrefix(t, "{") {
		if root, err := parse([]byte(text)); err == nil && root != nil {
			return value{root}
		}
	}
	if list && text == "" {
		return value{&yaml.Node{Kind: yaml.SequenceNode}}
	}
	if list {
		return value{&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{single}}}
	}
	return value{single}
}

// keyOf finds the key that a variable sets, and the user's name in it: nil
// where the variable is none of ours, a misfit where it nearly is.
func (r *reader) keyOf(variable string) (*Key, string, error) {
	var best *Key
	var word string
	known := make([]string, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		before, after, named := k.cutVariable()
		if !named {
			if k.Variable() == variable {
				return k, "", nil
			}
			known = append(known, strings.TrimPrefix(k.Variable(), variablePrefix))
			continue
		}
		rest, ok := strings.CutPrefix(variable, before)
		if !ok {
			continue
		}
		// The longest ending wins: ..._ENV_FILE is not the key file of "..._ENV".
		if middle, ok := strings.CutSuffix(rest, after); ok && middle != "" && (best == nil || len(middle) < len(word)) {
			best, word = k, middle
		}
	}
	if best != nil {
		name, err := r.named(best, word)
		return best, name, err
	}
	return nil, "", stray(variable, known)
}

// cutVariable is what stands before and after the user's name in the key's
// variable; named is false for a key without such a name.
func (k Key) cutVariable() (before, after string, named bool) {
	for placeholder := range parts {
		if above, below, ok := strings.Cut(k.Path, "."+placeholder+"."); ok {
			return Key{Path: above}.Variable() + "_", "_" + strings.ToUpper(strings.ReplaceAll(below, ".", "_")), true
		}
	}
	return "", "", false
}

// named finds which part the word in a variable means: one that is there
// already and is written so in capitals, else a new one.
func (r *reader) named(k *Key, word string) (string, error) {
	names := sortedNames(r.draft.profiles)
	placeholder := "PROFILE"
	if strings.HasPrefix(k.Path, "peers.") {
		placeholder, names = "HOST", nil
		for _, host := range sortedNames(r.draft.peers) {
			names = append(names, string(host))
		}
	}
	var fits []string
	for _, name := range names {
		if capitals(name) == word {
			fits = append(fits, name)
		}
	}
	switch len(fits) {
	case 1:
		return fits[0], nil
	case 0:
		name := strings.ReplaceAll(strings.ToLower(word), "_", "-")
		if err := parts[placeholder].check(name); err != nil {
			return "", err
		}
		return name, nil
	}
	return "", &misfit{message: fmt.Sprintf("it means the %s %s alike", parts[placeholder].noun, strings.Join(fits, " and ")),
		hint: "set it in " + fileName}
}

// capitals is how a name is written in a variable.
func capitals(name string) string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

// stray judges a variable that sets no key: an error if it is nearly one of the
// known, which lack the prefix, or starts as our sections do.
func stray(variable string, known []string) error {
	const message = "it is no configuration key"
	word := strings.TrimPrefix(variable, variablePrefix)
	if near := nearest(word, known); near != "" {
		return &misfit{message: message, hint: "did you mean " + variablePrefix + near + "?"}
	}
	first, rest, more := strings.Cut(word, "_")
	if !more || rest == "" {
		return nil
	}
	section := nearest(first, upper(schema.order))
	if section == "" {
		return nil
	}
	if section != first {
		return &misfit{message: message, hint: "did you mean " + variablePrefix + section + "_" + rest + "?"}
	}
	return &misfit{message: message, hint: "the fleet.yaml that `fleet init` writes names the keys of " + strings.ToLower(section)}
}

func upper(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strings.ToUpper(w)
	}
	return out
}
