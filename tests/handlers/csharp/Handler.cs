using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

/// <summary>Handlers that misbehave; judge.py says what must come of each.</summary>
public static class Handler
{
    static int started;

    public class Silent : Exception
    {
        public override string Message { get { throw new Exception("no message"); } }
    }

    public static long Right(long x) { return x; }

    public static object WrongType(long x) { return x == 2 ? (object)"text" : x; }

    public static long Throws(long x)
    {
        if (x == 2) throw new Silent();
        Task.Run(() => { throw new Exception("unseen"); });
        return x;
    }

    public static async Task<long> Waits(long x, CancellationToken token)
    {
        Interlocked.Increment(ref started);
        if (x == 100) Console.Error.WriteLine("the call of 100 has begun");
        await Task.Delay(x == 3 ? 600 : 200, token);
        if (x == 3 || x == 5) throw new Exception("bad " + x);
        return x;
    }

    public static long Count() { return started; }

    /// <summary>Takes rows on other threads than the one that gives results.</summary>
    public static IEnumerable<long> InParallel(IEnumerable<object[]> rows)
    {
        return rows.AsParallel().WithDegreeOfParallelism(4).Select(row => (long)row[0] + 1);
    }

    /// <summary>Ends while another thread still takes rows.</summary>
    public static IEnumerable<long> Leaves(IEnumerable<object[]> rows)
    {
        Task.Run(() => rows.Count());
        return new long[] { 1 };
    }

    public static long Exits(long x)
    {
        Environment.Exit(3);
        return x;
    }
}
