package fsm

import (
	"encoding/binary"

	schedulingv1 "k8s.io/api/scheduling/v1"
)

var priorityClassTable = protoTable("priorityclasses", indexPriorityClass)

func indexPriorityClass(v *View, key string, old, new *schedulingv1.PriorityClass, hadOld, hasNew bool) {
	if hadOld && old.GlobalDefault {
		v.defaultClasses.Delete(defaultClassKey(old))
	}
	if hasNew && new.GlobalDefault {
		v.defaultClasses.Set(defaultClassKey(new), new.Name)
	}
}

func defaultClassKey(c *schedulingv1.PriorityClass) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(c.Value)^1<<31)
	return string(b[:]) + c.Name
}

// DefaultPriorityClass is the global default class, if there is one. Were there
// several, the one with the lowest value would hold (PC4).
func (v *View) DefaultPriorityClass() (*schedulingv1.PriorityClass, bool) {
	_, name, ok := v.defaultClasses.Min()
	if !ok {
		return nil, false
	}
	return v.PriorityClasses.Get(name)
}
