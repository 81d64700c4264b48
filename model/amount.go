package model

import "k8s.io/apimachinery/pkg/api/resource"

// Amounts are thousandths of a cpu, bytes, or units of whatever else is counted. What one pod asks for and what one node
// offers is between 0 and MaxAmount, whatever the object says; what the pods of a node ask for together is then at most
// MaxPodsPerNode·MaxAmount, which is less than maxSum. So sums over a node are exact, and where more comes together
// (nominations, or objects that were stored under other bounds) they stay at ±maxSum: two of them still add up without
// wrapping.
const (
	// MaxAmount is 256 TiB, or 281 billion cpus: more than there is, and so little that sums of it cannot wrap.
	MaxAmount int64 = 1 << 48
	// MaxPodsPerNode bounds the pods that count on one node.
	MaxPodsPerNode int64 = 1<<13 - 1

	maxSum int64 = 1 << 61
)

var (
	maxQuantity      = *resource.NewQuantity(MaxAmount, resource.BinarySI)
	maxMilliQuantity = *resource.NewMilliQuantity(MaxAmount, resource.DecimalSI)
)

// AmountOf is the amount of a quantity, rounded up to a whole byte or unit, and kept between 0 and MaxAmount.
func AmountOf(q resource.Quantity) int64 {
	if v, ok := q.AsInt64(); ok {
		return clampAmount(v)
	}
	switch {
	case q.Sign() <= 0:
		return 0
	case q.Cmp(maxQuantity) >= 0:
		return MaxAmount
	}
	return q.Value()
}

// MilliAmountOf is the amount of a quantity in thousandths, rounded up, and kept between 0 and MaxAmount.
func MilliAmountOf(q resource.Quantity) int64 {
	if v, ok := q.AsInt64(); ok {
		return clampAmount(clampAmount(v) * 1000)
	}
	switch {
	case q.Sign() <= 0:
		return 0
	case q.Cmp(maxMilliQuantity) >= 0:
		return MaxAmount
	}
	return q.MilliValue()
}

// Countable says whether the quantity of a resource is an amount as it is: AmountOf and MilliAmountOf change nothing of it
// but round.
func Countable(name string, q resource.Quantity) bool {
	most := maxQuantity
	if name == "cpu" {
		most = maxMilliQuantity
	}
	return q.Sign() >= 0 && q.Cmp(most) <= 0
}

func clampAmount(v int64) int64 { return min(max(v, 0), MaxAmount) }

// addAmounts and subAmounts take sums, which are between -maxSum and maxSum, and give one.
func addAmounts(a, b int64) int64 { return min(max(a+b, -maxSum), maxSum) }

func subAmounts(a, b int64) int64 { return min(max(a-b, -maxSum), maxSum) }
