using System;
using System.Collections.Concurrent;
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

    /// <summary>Three rows at a time, in enumerables that ask for them when they are written.</summary>
    public static IEnumerable<IEnumerable<long>> Triples(IEnumerable<object[]> rows)
    {
        var each = rows.Select(row => (long)row[0]).GetEnumerator();
        for (var i = 0; i < 20; i++) yield return Three(each);
    }

    /// <summary>The same of rows that another thread takes.</summary>
    public static IEnumerable<IEnumerable<long>> PumpedTriples(IEnumerable<object[]> rows)
    {
        var taken = new BlockingCollection<long>(1);
        Task.Run(() =>
        {
            foreach (var row in rows) taken.Add((long)row[0]);
            taken.CompleteAdding();
        });
        var each = taken.GetConsumingEnumerable().GetEnumerator();
        for (var i = 0; i < 20; i++) yield return Three(each);
    }

    static IEnumerable<long> Three(IEnumerator<long> rows)
    {
        for (var i = 0; i < 3 && rows.MoveNext(); i++) yield return rows.Current;
    }

    public static long Exits(long x)
    {
        Environment.Exit(3);
        return x;
    }
}
