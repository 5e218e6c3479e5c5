// Package typo finds the word that a user meant, or lists the words that there
// are.
package typo

import "strings"

// Nearest is the word that was meant, or empty if none is near: not more than two
// letters have to be inserted, deleted or replaced.
func Nearest(word string, words []string) string {
	const most, longest = 2, 64
	best, least := "", most+1
	if len(word) > longest {
		return ""
	}
	for _, w := range words {
		if n := distance(strings.ToLower(word), w); n < least && n < len(w) {
			best, least = w, n
		}
	}
	return best
}

// AnyOf is a list of words for people, such as "a, b or c".
func AnyOf(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// distance is how many letters have to be inserted, deleted or replaced to make b
// of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
