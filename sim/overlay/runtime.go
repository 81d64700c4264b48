package overlay

// Runtime makes a process that runs on one processor repeat itself: what is random
// in the scheduler, in select, in maps and in timers comes from one seed
// (SeedVariable), no thread looks over the goroutines' shoulders, and a lock does
// not ask how long somebody has really waited for it. Who takes a lock lets others
// run before, now and then: nobody else would preempt him.
func Runtime() []Edit {
	return []Edit{
		// Hash functions and the order in which maps are walked.
		{"src/runtime/rand.go", "\tseed := &globalRand.seed\n\tif len(startupRand) >= 16 &&", "\tseed := &globalRand.seed\n\tif true {\n" +
			"\t\tfor i := range seed {\n\t\t\tseed[i] = byte(i + 1)\n\t\t}\n\t} else if len(startupRand) >= 16 &&"},
		{"src/runtime/rand.go", "\tmp := getg().m\n\tc := &mp.chacha8\n", "\tmp := getg().m\n" +
			"\tif gp := mp.curg; gp != nil && gp.bubble != nil {\n\t\treturn bubbleRand()\n\t}\n\tc := &mp.chacha8\n"},
		{"src/runtime/rand.go", "//go:linkname maps_rand internal/runtime/maps.rand", "// bubbleState is what is random in bubbles; one time in bubbleHold + 1 whoever takes a lock gives way.\nvar bubbleState, bubbleCheap, bubbleHold uint64\n\n" +
			"//go:nosplit\nfunc bubbleRand() uint64 {\n\tbubbleState += 0x9e3779b97f4a7c15\n\tz := bubbleState\n" +
			"\tz = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9\n\tz = (z ^ (z >> 27)) * 0x94d049bb133111eb\n\treturn z ^ (z >> 31)\n}\n\n" +
			"//go:linkname maps_rand internal/runtime/maps.rand"},
		{"src/runtime/synctest.go", "\tbubble.now = synctestBaseTime\n", "\tbubble.now = synctestBaseTime\n" +
			"\tbubbleState = 0\n\tfor _, c := range []byte(gogetenv(\"" + SeedVariable + "\")) {\n\t\tbubbleState = bubbleState*10 + uint64(c-'0')\n\t}\n" +
			"\tif bubbleHold = 63; bubbleState%5 == 3 {\n\t\tbubbleHold = 3\n\t}\n"},
		// Which of several ready cases is taken.
		{"src/runtime/select.go", "\t\tj := cheaprandn(uint32(norder + 1))\n", "\t\tj := uint32(0)\n\t\tif gp.bubble != nil {\n" +
			"\t\t\tj = uint32(bubbleRand() % uint64(norder+1))\n\t\t} else {\n\t\t\tj = cheaprandn(uint32(norder + 1))\n\t\t}\n"},
		// Which of several timers of one instant comes first.
		{"src/runtime/time.go", "\t\t\tt.rand = cheaprand()\n", "\t\t\tt.rand = uint32(bubbleRand())\n"},
		// Nobody preempts, and nobody takes the processor from a system call.
		{"src/runtime/proc.go", "const haveSysmon = GOARCH != \"wasm\"", "const haveSysmon = false"},
		// Who waits for a lock waits: time may pass meanwhile, or whoever holds it over a
		// write to a slow disk would hold up time.
		{"src/runtime/runtime2.go", "\twaitReasonSyncCondWait:          true,\n", "\twaitReasonSyncCondWait:          true,\n" +
			"\twaitReasonSyncMutexLock:         true,\n\twaitReasonSyncRWMutexRLock:      true,\n\twaitReasonSyncRWMutexLock:       true,\n"},
		// How long somebody has waited for a lock is virtual time.
		{"src/runtime/sema.go", "//go:linkname internal_sync_nanotime internal/sync.runtime_nanotime\nfunc internal_sync_nanotime() int64 {\n", "//go:linkname internal_sync_giveWay internal/sync.runtime_giveWay\n" +
			"func internal_sync_giveWay() {\n\tif gp := getg(); gp.bubble != nil && bubbleRand()&bubbleHold == 0 {\n\t\tGosched()\n\t}\n}\n\n" +
			"//go:linkname internal_sync_nanotime internal/sync.runtime_nanotime\nfunc internal_sync_nanotime() int64 {\n" +
			"\tif gp := getg(); gp.bubble != nil {\n\t\treturn gp.bubble.now\n\t}\n"},
		{"src/internal/sync/runtime.go", "//go:linkname runtime_nanotime\n", "//go:linkname runtime_giveWay\nfunc runtime_giveWay()\n\n//go:linkname runtime_nanotime\n"},
		{"src/internal/sync/mutex.go", "func (m *Mutex) Lock() {\n", "func (m *Mutex) Lock() {\n\truntime_giveWay()\n"},
		// What a bubble does alone decides what its goroutines draw, be it ever so cheap:
		// a collector draws too.
		{"src/runtime/rand.go", "func cheaprand() uint32 {\n", "func cheaprand() uint32 {\n" +
			"\tif gp := getg(); gp.bubble != nil {\n\t\tbubbleCheap = bubbleCheap*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019\n\t\treturn uint32(bubbleCheap >> 32)\n\t}\n"},
		// How often the scheduler was at work, for a collector too, says nothing of who
		// runs next.
		{"src/runtime/proc.go", "\tif pp.schedtick%61 == 0 && !sched.runq.empty() {\n", "\tif false {\n"},
		// What a world has used is collected every minute or later, and so it uses memory that it has never touched most of the time: in pieces that are
		// large, the kernel hands it out in half of the time.
		{"src/runtime/mem_linux.go", "\tsetVMAName(p, n, vmaName)\n\n\t// Disable huge pages if", "\tsetVMAName(p, n, vmaName)\n\tsysHugePageOS(v, n)\n\n\t// Disable huge pages if"},
		// A world is made of goroutines that live for one request: their stacks are large enough from the first.
		{"src/runtime/stack.go", "var startingStackSize uint32 = fixedStack\n", "var startingStackSize uint32 = 16 << 10\n"},
		{"src/runtime/runtime1.go", "\tdebug.adaptivestackstart = 1 //", "\tdebug.adaptivestackstart = 0 //"},
		// A world starts hundreds of servers, whose API has the same paths, and which show each other the same certificates: what was compiled,
		// or verified, is so again.
		{"src/regexp/regexp.go", "func Compile(expr string) (*Regexp, error) {\n\treturn compile(expr, syntax.Perl, false)\n}\n", "var compiled sync.Map // by expression\n\n" +
			"func Compile(expr string) (*Regexp, error) {\n\tknown, ok := compiled.Load(expr)\n\tif !ok {\n\t\tre, err := compile(expr, syntax.Perl, false)\n" +
			"\t\tif err != nil {\n\t\t\treturn nil, err\n\t\t}\n\t\tknown, _ = compiled.LoadOrStore(expr, re)\n\t}\n\tre := *known.(*Regexp) // Longest changes it\n\treturn &re, nil\n}\n"},
		{"src/crypto/x509/x509.go", "\t\"strconv\"\n", "\t\"strconv\"\n\t\"sync\"\n"},
		{"src/crypto/x509/x509.go", "\treturn checkSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature, parent.PublicKey, false)\n}\n\n// CheckSignature verifies",
			"\tkey := string(c.Raw) + string(parent.RawSubjectPublicKeyInfo)\n\tif _, ok := verified.Load(key); ok {\n\t\treturn nil\n\t}\n" +
				"\terr := checkSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature, parent.PublicKey, false)\n\tif err == nil {\n\t\tverified.Store(key, true)\n\t}\n\treturn err\n}\n\n" +
				"var verified sync.Map // by certificate and key\n\n// CheckSignature verifies"},
		// Who is made ready runs next, or after the others: as chance will.
		{"src/runtime/proc.go", "\t\tnext = false\n\t}\n\tif randomizeScheduler && next && randn(2) == 0 {\n",
			"\t\tnext = next && gp.bubble != nil && bubbleRand()&3 == 0\n\t}\n\tif randomizeScheduler && next && randn(2) == 0 {\n"},
	}
}

// SeedVariable is the environment's variable that has the seed, a decimal number.
const SeedVariable = "BERTH_SIM_SEED"
