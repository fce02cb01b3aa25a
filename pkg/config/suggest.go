package config

import (
	"slices"
	"strings"
)

// unknown says what is wrong with a key that the section path does not have,
// and what was probably meant: a key of another section, or one spelt alike.
func unknown(name, path string, b *branch) (message, hint string) {
	for _, k := range keys {
		segments := strings.Split(k.Path, ".")
		for i, segment := range segments {
			if segment != name || parts[segment].noun != "" {
				continue
			}
			if i == 0 {
				return "misplaced key " + quote(name), name + " stands at the top, without indentation"
			}
			return "misplaced key " + quote(name), name + " belongs under " + strings.Join(segments[:i], ".")
		}
	}
	message = "unknown key " + quote(join(path, name))
	if near := nearest(name, b.order); near != "" {
		return message, "did you mean " + join(path, near) + "?"
	}
	for _, k := range keys {
		if last := k.Path[strings.LastIndexByte(k.Path, '.')+1:]; distance(name, last) <= tolerance(last) {
			return message, "did you mean " + k.Path + "?"
		}
	}
	return message, "known here: " + strings.Join(b.order, ", ")
}

// nearest is the candidate that word was probably meant to be, empty for none.
func nearest(word string, candidates []string) string {
	best, least := "", 1<<30
	for _, c := range candidates {
		if d := distance(word, c); d <= tolerance(c) && d < least {
			best, least = c, d
		}
	}
	return best
}

// tolerance is how many slips still leave a word recognisable.
func tolerance(word string) int { return max(1, min(3, len(word)/3)) }

// distance counts the slips between a and b: a letter added, lost or changed,
// or two neighbours swapped (optimal string alignment). Words that are too
// long to be a slip of the other are far away without being compared.
func distance(a, b string) int {
	a = strings.ToLower(a)
	b = strings.ToLower(b)
	if gap := len(a) - len(b); gap > 3 || gap < -3 {
		return 1 << 20
	}
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			now[j] = min(change, last[j]+1, now[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// sortedNames is the names of a map in order.
func sortedNames[K ~string, V any](m map[K]V) []K {
	names := make([]K, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
