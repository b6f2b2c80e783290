using System;
using System.Collections.Generic;

/// <summary>The handler: static methods are functions; AddOne answers add_one.</summary>
public static class Handler
{
    /// <summary>One row at a time; null is NULL.</summary>
    public static long? AddOne(long? x)
    {
        return x + 1;
    }

    /// <summary>A whole batch at a time (batch = "columns" in transship.toml).</summary>
    public static double[] Hypotenuse(double[] a, double[] b)
    {
        var results = new double[a.Length];
        for (var row = 0; row < a.Length; row++) results[row] = Math.Sqrt(a[row] * a[row] + b[row] * b[row]);
        return results;
    }

    /// <summary>A table function: any number of results for each row.</summary>
    public static IEnumerable<string> Words(string text)
    {
        return text.Split((char[])null, StringSplitOptions.RemoveEmptyEntries);
    }

    /// <summary>An aggregate function: an instance per group of rows. Its public members travel between containers.</summary>
    public sealed class Longest
    {
        public string Text;

        public void Step(string text)
        {
            if (text != null && (Text == null || text.Length > Text.Length)) Text = text;
        }

        /// <summary>Lets queries run in parallel.</summary>
        public void Merge(Longest other)
        {
            Step(other.Text);
        }

        public string Finish()
        {
            return Text;
        }
    }
}
