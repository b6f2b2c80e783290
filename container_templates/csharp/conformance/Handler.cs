using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using Transship;

/// <summary>The functions of the conformance suite, as docs/conformance.md describes them.</summary>
public static class Handler
{
    public sealed class Pair
    {
        public int? A;
        public string B;
    }

    public sealed class Decimals
    {
        public string A;
        public string[] B;
    }

    public static bool? EchoBool(bool? x) { return x; }
    public static short? EchoInt2(short? x) { return x; }
    public static int? EchoInt4(int? x) { return x; }
    public static long? EchoInt8(long? x) { return x; }
    public static float? EchoFloat4(float? x) { return x; }
    public static double? EchoFloat8(double? x) { return x; }
    public static string EchoText(string x) { return x; }
    public static byte[] EchoBytea(byte[] x) { return x; }
    public static DateTime? EchoDate(DateTime? x) { return x; }
    public static DateTime? EchoTimestamp(DateTime? x) { return x; }
    public static DateTimeOffset? EchoTimestamptz(DateTimeOffset? x) { return x; }
    public static string EchoNumeric(string x) { return x; }
    public static Guid? EchoUuid(Guid? x) { return x; }
    public static string EchoJson(string x) { return x; }
    public static TimeSpan? EchoTime(TimeSpan? x) { return x; }
    public static string EchoTimetz(string x) { return x; }
    public static Interval? EchoInterval(Interval? x) { return x; }
    public static string EchoInet(string x) { return x; }
    public static string EchoCidr(string x) { return x; }
    public static string EchoMacaddr(string x) { return x; }
    public static DateTime? EchoDatetime2(DateTime? x) { return x; }
    public static int?[] EchoArray(int?[] x) { return x; }
    public static Range<long?> EchoRange(Range<long?> x) { return x; }
    public static Pair EchoComposite(Pair x) { return x; }
    public static Decimals EchoDecimals(Decimals x) { return x; }

    public static int Constant() { return 7; }

    public static long?[] Add(long?[] a, long?[] b) { return a.Zip(b, (x, y) => x + y).ToArray(); }

    public static long FailAt(long x)
    {
        if (x == 13) throw new ArgumentException("13 is bad");
        return x;
    }

    public static double Wait(double seconds)
    {
        Thread.Sleep(TimeSpan.FromSeconds(seconds));
        return seconds;
    }

    public static IEnumerable<int> Repeat(int? n) { return Enumerable.Range(1, n ?? 0); }

    public static string TableLookup(long? key) { return SharedTable.Open("numbers").Get(key)?.Get<string>("name"); }

    public static IEnumerable<long> RunningSum(IEnumerable<object[]> rows)
    {
        var sum = 0L;
        foreach (var row in rows) yield return sum += (long?)row[0] ?? 0;
    }

    public sealed class Total
    {
        public long Sum;

        public void Step(long? x) { Sum += x ?? 0; }

        public void Merge(Total other) { Sum += other.Sum; }

        public long Finish() { return Sum; }
    }
}
