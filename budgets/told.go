package budgets

import (
	"regexp"
	"strconv"
	"strings"
)

// inTheWay is what stands before the name of a budget in Barred.
const inTheWay = "PodDisruptionBudget "

// BarredElsewhere is what Barred comes to for who may not read the budget.
const BarredElsewhere = "node(s) blocked by a PodDisruptionBudget"

// Barred tells which budget, by namespace and name, keeps pods from being evicted, and why.
func Barred(key string, needed, healthy int64) string {
	return "node(s) blocked by " + inTheWay + key + " (needs " + strconv.FormatInt(needed, 10) + " healthy, has " + strconv.FormatInt(healthy, 10) + ")"
}

// barred finds budgets in a text, one that was cut off included.
var barred = regexp.MustCompile(inTheWay + `([^\s/]+)/\S+( \(needs [^)]*\)?)?`)

// Shown is a text in which Barred may be, without the names and numbers of budgets that its reader may not read.
func Shown(text string, mayRead func(namespace string) bool) string {
	if !strings.Contains(text, inTheWay) {
		return text
	}
	return barred.ReplaceAllStringFunc(text, func(found string) string {
		if mayRead(barred.FindStringSubmatch(found)[1]) {
			return found
		}
		return "a " + strings.TrimSpace(inTheWay)
	})
}
